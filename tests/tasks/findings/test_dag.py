"""The picture of the stages: what read what, as each run wrote it down, and drawn so that it can be read."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

from storage import durable
from storage.run_directory import RunDirectory
from tasks.findings.dag import Dag, Node
from tasks.findings.dag_figure import dag_figure
from tasks.stage.run import StageInput
from tests.tasks.tiny import finished_study

LAST = SimpleNamespace(directory=Path("/runs/toy/report/0123456789ab"))


def run_of(root: Path, stage: str, cell: str = "", **inputs: RunDirectory) -> RunDirectory:
    run = RunDirectory(root, "toy", stage, durable.sha256_json([stage, cell]))
    run.path.mkdir(parents=True)
    described: dict[str, Any] = {"configuration": {"cell": cell}, "numerics": {"torch": "2"}}
    described["inputs"] = {
        role: {"stage": given.stage, "fingerprint": given.fingerprint} for role, given in inputs.items()
    }
    durable.write_json(run.stage_file, described)
    return run


def dag_of(*last: RunDirectory) -> Dag:
    return Dag.of(LAST, [StageInput(run, "") for run in last])


def boxes_of(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """First and second line of each box -> left, top, right, bottom."""
    found = {}
    for x, y, width, height, rest in re.findall(
        r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" rx="5"[^>]*/>(.*?)(?=<rect|</svg>)', svg
    ):
        left, top = float(x), float(y)
        name = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", rest)[:2])
        found[name] = (left, top, left + float(width), top + float(height))
    return found


def test_the_runs_behind_those_that_were_given_are_found_from_what_they_wrote_down(tmp_path):
    text = run_of(tmp_path, "setup")
    model = run_of(tmp_path, "train", "wide", text=text)
    attack = run_of(tmp_path, "attack", "wide", text=text, model=model)
    dag = dag_of(attack)
    assert [node.label for node in dag.nodes.values()] == ["setup", "train (wide)", "attack (wide)", "report"]
    assert dag.nodes[attack.path.name].inputs == (text.path.name, model.path.name)
    assert dag.nodes[LAST.directory.name].inputs == (attack.path.name,)


def test_a_run_that_was_removed_since_is_a_box_without_what_it_read(tmp_path):
    text = run_of(tmp_path, "setup")
    model = run_of(tmp_path, "train", text=text)
    for file in text.path.iterdir():
        file.unlink()
    text.path.rmdir()
    (model.path.parent / "x").mkdir()
    assert [node.stage for node in dag_of(model).nodes.values()] == ["setup", "train", "report"]


def test_every_box_has_its_stage_its_cell_and_its_run_and_what_is_read_stands_left_of_what_reads_it():
    aggregate = finished_study().handles["aggregate"]
    dag = dag_of(*(given.run for given in aggregate.inputs.values()))
    svg = dag_figure(dag).svg
    ElementTree.fromstring(svg)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    for name, node in dag.nodes.items():
        assert name in texts and node.stage in texts and (not node.cell or node.cell in texts)
    left = {name: float(re.findall(rf'<text x="(\S+)" [^>]*>{name}<', svg)[0]) for name in dag.nodes}
    assert all(left[given] < left[name] for name, node in dag.nodes.items() for given in node.inputs)
    kinds = ("hotflip", "train-placebo", "constrain")
    assert all(len({left[name] for name, node in dag.nodes.items() if node.stage == kind}) == 1 for kind in kinds)


def test_no_two_boxes_overlap_and_no_line_runs_through_one(tmp_path):
    text = run_of(tmp_path, "setup")
    early = run_of(tmp_path, "early", text=text)
    middle = [run_of(tmp_path, "middle", f"number {number}", early=early) for number in range(3)]
    late = [run_of(tmp_path, "late", f"number {number}", given=one) for number, one in enumerate(middle)]
    beside = run_of(tmp_path, "beside", text=text)  # its line from setup passes the columns of early and middle
    svg = dag_figure(dag_of(*late, beside)).svg
    boxes = list(boxes_of(svg).values())
    assert len(boxes) == 10
    for number, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:number]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    (path,) = re.findall(r'<path d="([^"]+)"', svg)
    passing = re.findall(r"M(\S+) (\S+)H([\d.]+)", path)
    assert passing
    for begin, y, end in passing:
        for left, top, right, bottom in boxes:
            assert float(end) <= left or right <= float(begin) or not top <= float(y) <= bottom


def test_what_a_run_reads_by_way_of_another_has_no_line_of_its_own():
    reads = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ("a", "c")}
    svg = dag_figure(Dag({name: Node(name, "", Path(name), inputs) for name, inputs in reads.items()})).svg
    assert re.findall(r'<path d="([^"]+)"', svg)[0].count("C") == 3, "a to b, b to c, c to d"


def test_very_many_runs_of_a_stage_are_one_box_that_says_how_many(tmp_path):
    text = run_of(tmp_path, "setup")
    trained = [run_of(tmp_path, "train", f"seed {seed}", text=text) for seed in range(40)]
    svg = dag_figure(dag_of(*trained)).svg
    assert list(boxes_of(svg)) == [f"setup {text.path.name}", "train 40 runs", f"report {LAST.directory.name}"]
    assert 'aria-label="42 runs of 3 stages: setup, train, report."' in svg


def test_what_a_person_called_a_cell_is_shown_as_text():
    nodes = {"a": Node("train", '<script>"&', Path("a"), ()), "b": Node("report", "", Path("b"), ("a",))}
    svg = dag_figure(Dag(nodes)).svg
    assert "&lt;script&gt;&quot;&amp;" in svg and "<script" not in svg


def test_it_has_the_colours_of_the_page_and_alone_its_own():
    svg = dag_figure(Dag({"a": Node("train", "", Path("a"), ())})).svg
    assert set(re.findall(r"(?:fill|stroke)=\"([^\"]+)\"", svg)) == {
        "none", "var(--ink, #222222)", "var(--faint, #6b6b6b)", "var(--paper, #ffffff)"
    }  # fmt: skip
