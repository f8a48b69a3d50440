"""docs/influence.md is executed as it stands, and its table of machines is the plan's."""

import re

from tasks.influence.plan import Limits, Machine, factor_plan
from tests.docs.pages import PAGES, blocks
from tests.tasks.influence.models import t5_without_weights


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = [block for block in blocks("python") if block.page == "docs/influence.md"]
    names: dict = {}
    exec(compile(block.text, block.page, "exec"), names)
    assert names["of_queries"].shape == (10, 300) and names["most"].shape == (10, 5)
    assert names["degraded"](names["statistics"]) == []


def test_its_machines_do_what_it_says():
    rows = re.findall(r"^\| `Machine\((.*)\)`.*? \| (.*): ([\d.]+) s \| (.*) \|$", PAGES["docs/influence.md"], re.M)
    assert len(rows) == 3
    for machine, what, seconds, why in rows:
        last = factor_plan(t5_without_weights(), Machine(*eval(f"({machine},)")), Limits(kinds=["linear"]))
        [last] = [one for one in last if one.name == "lm_head"]
        count = -(-last.rows // last.row_block)
        assert what == (f"{count} blocks of {last.row_block:,}" if count > 1 else "whole")
        assert seconds == f"{last.seconds:.0f}" or seconds == f"{last.seconds:.1f}"
        assert why in last.why or why.removeprefix("at once ") in last.why
