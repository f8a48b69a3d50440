"""`--json`: one document, with names that stay, of what the words say too; and the same exit code."""

import json
from typing import Any

import pytest

from flows import command
from storage import durable
from tests.flows.answers import Study, finished

Capture = pytest.CaptureFixture[str]


def asked(capsys: Capture, *given: object) -> tuple[int, str]:
    code = command.ratchet([str(word) for word in given])
    return code, capsys.readouterr().out


def both(capsys: Capture, *given: object) -> tuple[Any, str]:
    """The document, and the words; of one exit code."""
    (code, text), (same, words) = asked(capsys, *given, "--json"), asked(capsys, *given)
    assert code == same
    return json.loads(text), words


def test_list_has_every_result_and_what_is_not_finished(tmp_path, capsys):
    answer = finished(tmp_path, Study(name="one"))[1]
    failed = finished(tmp_path, Study(name="two", fails=True, words=3))[0]
    studies, words = both(capsys, "list", tmp_path)
    assert [[study[key] for key in ("name", "begun", "finished")] for study in studies] == [
        ["one", 2, 2],
        ["two", 1, 0],
    ]
    (result,), (work,) = studies[0]["results"], studies[1]["work"]
    assert result["run"] == str(answer.run.path) and result["shown"] == str(answer.run.path / "report.html")
    assert (work["path"], work["state"]) == (str(failed.run.path), "not finished") and work["stands"] in words
    assert result["headline"] in words and result["cells"] == []
    names = {"run", "ended_at", "headline", "shown", "cells", "configured"}
    assert result.keys() == names and studies[0].keys() == {
        *("name", "begun", "finished", "results", "work", "unlearned")
    }
    assert asked(capsys, "list", tmp_path / "none", "--json") == (2, "")


def test_show_has_all_that_is_said_of_a_run(tmp_path, capsys):
    finished(tmp_path, Study(name="one", fails=True))
    count, answer = finished(tmp_path, Study(name="one"))
    facts, words = both(capsys, "show", answer.run.path)
    assert (facts["study"], facts["stage"], facts["fingerprint"]) == ("one", "answer", answer.run.fingerprint)
    assert facts["headline"] in words and facts["files"] == [
        str(answer.run.path / name) for name in ("report.html", "table.md", "final_results.json", "result.json")
    ]
    assert facts["reads"] == [{"role": "counted", "stage": "count", "folder": str(count.run.path), "there": True}]
    facts, words = both(capsys, "show", count.run.path)
    assert [one["record"]["end_state"] for one in facts["attempts"]] == ["check_failed", "finished"]
    assert facts["attempts"][0]["record"] == durable.read_json(count.run.attempts / "0001.json")
    assert facts["log"] == str(count.run.attempts / "0002.log") and facts["again"][0] in words
    assert facts.keys() == {
        *("study", "stage", "fingerprint", "folder", "cell", "state", "stands", "ended_at", "seconds", "headline"),
        *("files", "refused", "again", "numerics", "reads", "attempts", "log", "job_log", "bytes"),
    }
    files = [file for file in count.run.path.rglob("*") if file.is_file()]
    assert sum(facts["bytes"].values()) == sum(file.stat().st_size for file in files)
    assert asked(capsys, "show", count.run.path, "--json", "--table") == (2, "")


def test_compare_has_all_differences_and_which_outputs_are_equal(tmp_path, capsys):
    one, other = (finished(tmp_path, Study(name="one", level=level))[-1].run for level in (0.95, 0.9))
    found, words = both(capsys, "compare", one.path, other.path, "--all")
    assert [found[name]["folder"] for name in "ab"] == [str(one.path), str(other.path)]
    assert found["configuration"] == [{"name": "level", "a": 0.95, "b": 0.9, "stages": ["answer"]}]
    results, differing = found["results"], found["results"]["differing"]
    assert len(differing) == 40 and f"results ({results['file']}): 40 of {results['values']} values differ" in words
    there, here = (durable.read_json(run.path / "final_results.json")["of"] for run in (one, other))
    assert {row["name"]: (row["a"], row["b"]) for row in differing if row["name"].startswith("of.")} == {
        f"of.{part}": (there[part], here[part]) for part in there if there[part] != here[part]
    }
    assert all(f"  {row['name']}: " in words for row in differing)
    equal, differ = ["report.html", "table.md"], ["final_results.json", "result.json"]
    assert found["outputs"] == {"equal": equal, "differ": differ, "only_a": [], "only_b": []}
    table = tmp_path / "table.csv"
    table.write_text("arm,seed,loss\n" + "".join(f"{arm},{seed},{seed + add}\n" for arm, add in (("a", 0), ("b", 0.1))
                                               for seed in (1, 2, 3)))  # fmt: skip
    assert '"comparisons": [' in asked(capsys, "compare", table, "--json")[1]


def test_status_has_each_stage_with_its_folder_and_how_it_stands(tmp_path, capsys):
    found, words = both(capsys, "status", "inversion", "--profile", "smoke", "--root", tmp_path / "none")
    assert (found["study"], found["finished"], found["notes"]) == ("inversion-smoke", False, words.splitlines()[:1])
    lines = words.splitlines()[1:]
    assert [f"{row['stage']:<16} {row['fingerprint'][:12]}  {row['stands']}" for row in found["stages"]] == [
        line.partition("  (")[0] for line in lines
    ]
    assert {row["state"] for row in found["stages"]} == {"not finished"}
    first = found["stages"][0]
    assert first["folder"] == str(tmp_path / "none" / found["study"] / first["stage"] / first["fingerprint"][:12])
    assert asked(capsys, "status", "inversion", "--profile", "smoke", "--root", tmp_path, "--json")[0] == 75


def test_a_number_that_is_not_finite_is_no_json(tmp_path, capsys):
    """As in the run directory of a stranger: `NaN` would break the program that reads it."""
    run = finished(tmp_path, Study(name="one"))[0].run
    (run.attempts / "0001.json").write_text('{"attempt": 1, "cpu_seconds": NaN}')
    code, printed = asked(capsys, "show", run.path, "--json")
    assert (printed == "" and code == 2) or "NaN" not in printed
