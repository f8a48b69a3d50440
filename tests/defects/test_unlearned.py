"""A training no better than its own trivial method ended as finished in a study of one's own, and nothing said so."""

import json
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import command
from storage.run_directory import RunDirectory
from tasks.training.result import compared
from tasks.training.unlearned import unlearned

PAGE = """
import ratchet as r
from tasks.training.result import compared

@r.stage(needs="cpu", torch=False)
def train(run, cell: str, loss: float):
    run.metrics.append({"step": 1, "best_loss": loss, **compared(loss, {"uniform guess": 1.609})})
    return {"best_loss": loss}

@r.stage(needs="cpu", torch=False)
def report(run, trained):
    return r.publish_report(run, trained, {"number": len(trained)}, r.Document("Folds"))

@r.study
def noise():
    losses = {"good": 0.4, "bad": 1.7, "worse": 2.0}
    return report({name: train(name, loss) for name, loss in losses.items()})
"""
SAID = "2 of 3 trainings are no better than uniform guess, which learns nothing: noise-train "


def test_trainings_that_learned_nothing_are_told_in_terminal_table_list_index_and_prefect(
    tmp_path, prefect_server, capsys
):
    (tmp_path / "noise.py").write_text(PAGE)
    root = str(tmp_path / "runs")
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        assert command.ratchet(["run", str(tmp_path / "noise.py"), "--root", root]) == 0, "the gate is the study's"
        with get_client(sync_client=True) as client:
            (run,) = [run for run in client.read_flow_runs() if root in str(run.parameters)]
    shown = capsys.readouterr().out
    assert SAID in shown.splitlines()[-1] + shown.splitlines()[-2] and "(bad)" in shown and "(worse)" in shown
    assert run.state is not None and SAID in (run.state.message or "")
    (table,) = Path(root).glob("noise/noise-report/*/table.md")
    assert SAID in table.read_text() and SAID in (Path(root) / "index.html").read_text()
    assert command.ratchet(["list", root]) == 0
    assert SAID in capsys.readouterr().out


def _with_rows(root: Path, number: int, *rows: dict[str, object]) -> RunDirectory:
    run = RunDirectory(root, "study", "train", f"{number:012}")
    run.path.mkdir(parents=True)
    lines = [json.dumps({"step": step, **row}) for step, row in enumerate(rows)]
    run.metrics_file.write_text("".join(f"{line}\n" for line in lines))
    return run


def test_only_the_best_validation_counts(tmp_path):
    late = (compared(3.0, {"mean": 2.0}), compared(1.0, {"mean": 2.0}), compared(4.0, {"mean": 2.0}))
    others = ({"no": "training"}, {"trivial": {}})
    learned = [_with_rows(tmp_path, number, *rows) for number, rows in enumerate((late, others))]
    assert unlearned(learned) == ""
    nothing = _with_rows(tmp_path, 9, compared(0.4, {"majority": 0.5}, True))
    assert unlearned([*learned, nothing]).startswith("1 of 2 trainings is no better than majority")
    assert unlearned([_with_rows(tmp_path, 10, compared(2.0, {"mean": 2.0, "zero": 2.5}))]).startswith("1 of 1 train")
