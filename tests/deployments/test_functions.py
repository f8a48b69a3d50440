"""A study written as functions is the study that the same page and configurations by hand would be."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp

import ratchet
from deployments.dag.page import Page, load_page
from deployments.dag.sources import digest_of
from deployments.dag.walk import Handle
from flows import command
from flows.command.settings import read_study
from storage import attempts, durable
from storage.errors import BadInput
from tasks.training.__main__ import continue_run
from tests.tasks.tiny import Here

ARMS = '''
"""Which arm is higher?"""
from typing import Annotated, Literal

import ratchet as r

@r.stage(needs="cpu", torch=False)
def base(run, size: Annotated[int, r.knob("How large.", ge=1)] = 3):
    return {"size": size}

@r.stage(needs="training", version=2)
def arm(run, base, seed: int, how: Literal["up", "down"], fold: int, by: float = 0.5):
    return {"value": base.result["size"] + fold + (by if how == "up" else -by), "threads": run.execution.cpu_threads}

@r.stage(needs="cpu", torch=False)
def table(run, base, arms, first):
    """Of a dictionary and a list of arms."""
    values = {how: given.result["value"] for how, given in arms.items()}
    return {"arms": values, "first": [given.result["value"] for given in first]}

@r.study
def which(folds: Annotated[int, r.knob("Folds of each arm.", ge=1)] = 2):
    made = base()
    arms = {f"{how}_{fold}": arm(made, how=how, fold=fold) for how in ("up", "down") for fold in range(folds)}
    return table(made, arms, first=[arms["up_0"], arms["down_0"]])
'''


def page_of(folder: Path, text: str = ARMS, name: str = "which") -> Page:
    (folder / f"{name}.py").write_text(text)
    return load_page(str(folder / f"{name}.py"))


def walked(folder: Path, *changes: str, seed: int = 42) -> list[Handle]:
    page = page_of(folder)
    study = read_study(page, None, [*changes], seed)
    here = Here(folder / "runs", study.name, study.execution)
    return page.walk(study, here)


def results(handles: list[Handle]) -> list[dict[str, object]]:
    return [durable.read_json(handle.run.result_file) for handle in handles]


def test_stages_read_what_their_parameters_name_one_a_dictionary_or_a_list(tmp_path: Path) -> None:
    handles = walked(tmp_path)
    assert [handle.stage.name for handle in handles] == ["which-base", *["which-arm"] * 4, "which-table"]
    assert [handle.label for handle in handles][1:3] == ["which-arm (how up, fold 0)", "which-arm (how up, fold 1)"]
    *_, table = results(handles)
    assert table == {"arms": {"up_0": 3.5, "up_1": 4.5, "down_0": 2.5, "down_1": 3.5}, "first": [3.5, 2.5]}
    assert [*handles[-1].inputs] == [
        "base",
        "arms_up_0",
        "arms_up_1",
        "arms_down_0",
        "arms_down_1",
        "first_0",
        "first_1",
    ]


GIVEN = '''
"""What a stage is given."""
import ratchet as r

@r.stage(needs="cpu", torch=False)
def one(run, number: int):
    return {"number": number}

@r.stage(needs="cpu", torch=False)
def told(run, arms, arms_test, by_seed, several, grid, before=None):
    return {
        "arms": {arm: given.result["number"] for arm, given in arms.items()},
        "test": arms_test.result["number"],
        "seeds": [[seed, given.result["number"]] for seed, given in by_seed.items()],
        "several": [given.result["number"] for given in several],
        "grid": [[arm, fold, given.result["number"]] for arm, folds in grid.items() for fold, given in folds.items()],
        "before": before,
    }

@r.study
def given():
    a, b, c = (one(number=number) for number in (1, 2, 3))
    return told({"a": a, "b": b}, c, {2: b, 0: a, 1: c}, (c, a), {"a-1": {0: a, 1: b}, "a": {0: c}})
'''


def test_a_stage_is_given_what_the_call_gave_however_names_and_keys_look(tmp_path: Path) -> None:
    page = page_of(tmp_path, GIVEN, "given")
    result = results(page.walk(read_study(page, None, [], None), Here(tmp_path / "runs", "given")))[-1]
    assert result == {
        "arms": {"a": 1, "b": 2}, "test": 3, "seeds": [[2, 2], [0, 1], [1, 3]], "several": [3, 1], "before": None,
        "grid": [["a-1", 0, 1], ["a-1", 1, 2], ["a", 0, 3]],
    }  # fmt: skip
    with pytest.raises(BadInput, match="arms_0, arms_1 of arms, which read like something else"):
        page = page_of(
            tmp_path, GIVEN.replace('"a": a, "b": b', '"0": a, "1": b').replace("def given", "def keys"), "keys"
        )
        page.walk(read_study(page, None, [], None), Here(tmp_path / "runs", "keys"))


def test_keys_of_the_study_are_the_defaults_and_name_the_runs_that_read_them(tmp_path: Path) -> None:
    before = [handle.run.fingerprint for handle in walked(tmp_path)]
    after = [handle.run.fingerprint for handle in walked(tmp_path, "by=1.0")]
    assert before[0] == after[0] and not {*before[1:]} & {*after[1:]}
    other_seed = [handle.run.fingerprint for handle in walked(tmp_path, seed=1)]
    assert before[0] == other_seed[0] and before[1] != other_seed[1]
    assert len(walked(tmp_path, "folds=1")) == 4
    more_threads = walked(tmp_path, "execution.cpu_threads=1")
    assert [handle.run.fingerprint for handle in more_threads] == before, "an execution key names no run"
    arm = handles_of_arm(walked(tmp_path, "size=9"))[0]
    assert (arm.stage.version, arm.stage.needs, arm.config.numerics.fields) == (
        2,
        "training",
        ("micro_batch_examples",),
    )


FILES = """
import ratchet as r

@r.stage(needs="cpu", torch=False)
def read(
    run,
    table: r.LocalPath = "table.csv",
    more: list[r.LocalPath] = [],
    scripts: list[r.Script] = [r.Script(path="a.py")],
    named: dict[str, r.Script] = {},
):
    return {"text": open(table).read()}

@r.study
def which():
    return read()
"""


def test_files_that_a_stage_names_count_by_what_they_hold_and_not_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: an edited table gave the old answer, and an edited script of a list too, without a word."""
    monkeypatch.chdir(tmp_path)
    page = page_of(tmp_path, FILES)

    def read(*changes: str) -> str:
        study = read_study(page, None, [*changes], 42)
        (handle,) = page.walk(study, Here(tmp_path / "runs", study.name, study.execution))
        assert durable.read_json(handle.run.result_file)["text"] == Path(study.table).read_text()
        return handle.run.path.name

    for name in ("table.csv", "a.py", "elsewhere/table.csv", "other/b.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    first = read()
    assert read() == read("table=elsewhere/table.csv") == first
    (tmp_path / "elsewhere" / "table.csv").write_text("2")
    runs = [first, read("table=elsewhere/table.csv"), read("more=[table.csv]"), read("more=[table.csv, other/b.csv]")]
    runs += [
        read("more=[other/b.csv, table.csv]"),
        read("named={a: {path: a.py}}"),
        read("scripts=[{path: table.csv}]"),
    ]
    (tmp_path / "a.py").write_text("2")
    runs += [read(), read("named={a: {path: a.py}}")]
    assert len({*runs}) == len(runs)
    with pytest.raises(BadInput, match=f"there is no file or folder {tmp_path}/none.csv"):
        read("table=none.csv")


def handles_of_arm(handles: list[Handle]) -> list[Handle]:
    return [handle for handle in handles if handle.stage.name == "which-arm"]


def test_a_stage_is_told_how_the_study_works_and_goes_on_from_its_run_directory(tmp_path: Path) -> None:
    arm = handles_of_arm(walked(tmp_path, "execution.cpu_threads=1"))[0]
    assert durable.read_json(arm.run.result_file)["threads"] == 1
    (arm.run.path / "COMPLETE.json").unlink()
    assert continue_run(arm.run.path, tmp_path).end_state == "finished"
    assert durable.read_json(arm.run.result_file)["value"] == 3.5


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("def which(", "def other(", r"which\.py:\d+: .*is called other\(\): call it which\(\), like"),
        ("how=how, fold=fold", "how=how", r"which\.py:\d+: .*fold: is missing"),
        ('("up", "down")', '("up", "left")', r"which\.py:\d+: .*how: must be 'up' or 'down'"),
        ("arm(made, how", "arm(3, how", r"which\.py:\d+: stage which-arm: base is 3, and not what"),
        ("fold=fold)", "fould=fold)", r"which\.py:\d+: the stage arm has no parameter 'fould'; did you mean 'fold'\?"),
        ("    return table", "    return base", r"which\.py:\d+: the stage base has no parameter 'first'; it has size"),
        ("@r.study", "base()\n\n@r.study", r"which\.py:\d+: base\(\) is a stage: call it in a function with @study"),
        ("arms, first):", "arms, first, by: float = 0.7):", "table and arm both have by, with other types or defaults"),
        ("arms, first):", "arms, first, loud=True):", "loud=True has no type, .* write loud: bool = True"),
        ("arms, first):", "arms, first, arms_up=None):", "arms_up_0, .* of arms, which read like something else"),
        ("arms, first):", "arms, first, more):", "the stage table is given no stage call as more"),
        ("arm(made, how", "arm(None, how", r"stage which-arm: base is None, and not what a stage call returned"),
        ("by: float = 0.5", "by: tuple[r.LocalPath, ...] = ()", "would not count: use LocalPath, list.LocalPath"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert ARMS.count(old) == 1
    with pytest.raises(BadInput, match=told):
        page = page_of(tmp_path, ARMS.replace(old, new))
        page.walk(read_study(page, None, [], None), Here(tmp_path / "runs", "which"))


@pytest.mark.parametrize("change", ["size=0", "folds=0", "sizes=3"])
def test_limits_and_names_of_keys_hold_before_any_work(tmp_path: Path, change: str) -> None:
    with pytest.raises(BadInput, match=change.partition("=")[0]):
        walked(tmp_path, change)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("", "", "the stage table is given no stage call as arms"),
        ("    return table", "    list(arms)[0]\n    return table", r"which\.py:\d+: IndexError"),
    ],
)
def test_a_number_of_which_nothing_comes_is_told_with_its_key(tmp_path: Path, old: str, new: str, told: str) -> None:
    text = ARMS.replace('Annotated[int, r.knob("Folds of each arm.", ge=1)] = 2', "int = 2").replace(old, new)
    page = page_of(tmp_path, text.replace('[arms["up_0"], arms["down_0"]]', "[made]"))
    with pytest.raises(BadInput, match=f"{told}.*; folds is 0: give --set folds=1 or more"):
        page.walk(read_study(page, None, ["folds=0"], None), Here(tmp_path / "runs", "which"))


def test_what_an_edit_left_as_it_was_is_said_beside_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, words = tmp_path / "which.py", ["--root", str(tmp_path / "runs"), "--set"]
    page.write_text(ARMS)
    assert command.ratchet(["run", str(page), *words, "folds=1"]) == 0
    page.write_text(ARMS.replace("How large.", "How small."))
    assert "old results" not in capsys.readouterr().out
    for fresh in ([], ["--fresh", "which-base"]):
        assert command.ratchet(["run", str(page), *words, "folds=2", *fresh]) == 0
        kept = f"old results of {'' if fresh else 'which-base, '}which-arm x 2 are kept, though which.py, or"
        assert capsys.readouterr().out.splitlines()[-1].startswith(kept)


def test_what_looks_like_an_end_of_a_line_hides_no_edit_of_a_stage(tmp_path: Path) -> None:
    """Seen: form feeds moved what was left out, which the function with @study is, up into a stage."""
    page = tmp_path / "which.py"
    digests = set()
    for by in ("0.5", "0.7"):
        page.write_text(
            ARMS.replace("@r.stage", "\f\n" * 9 + "@r.stage").replace("by: float = 0.5", f"by: float = {by}")
        )
        digests.add(digest_of([page], tmp_path))
    assert len(digests) == 2


def test_an_edit_of_the_study_alone_makes_no_result_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seen: a corrected `metric=` of the report, and each arm was called old."""
    (page := tmp_path / "which.py").write_text(ARMS)
    words = ["run", str(page), "--root", str(tmp_path / "runs"), "--set", "folds=1"]
    assert command.ratchet(words) == 0
    for edited, new, old in (("return table", "assert folds\n    return table", 0), ("else -by", "else - by", 1)):
        page.write_text(ARMS.replace(edited, new))
        capsys.readouterr()
        assert command.ratchet([*words, "--dry-run"]) == 0
        assert capsys.readouterr().out.count("old results of which-base, which-arm x 2, which-table are kept") == old


def test_a_slip_in_the_name_of_a_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page_of(tmp_path)
    for slip in ("whihc.py", "whihc"):
        assert command.ratchet(["run", slip]) == 2 and "did you mean 'which.py'?" in capsys.readouterr().err


COMMITTED = """
import helper
import ratchet as r

@r.stage(needs="cpu", torch=False)
def only(run):
    return {"value": helper.VALUE}

@r.stage(needs="cpu", torch=False)
def told(run, made):
    r.require_verified({"made": made})
    return r.publish_report(run, {"made": made}, made.result, r.Document("Committed", verdict="It is."))

@r.study
def committed():
    return told(only())
"""


def test_the_commit_of_one_s_own_repository_is_told_beside_ratchet_s_and_its_files_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ratchet's commit, of which nothing was changed, was all that a report said of an edited file."""
    own, root = tmp_path / "own", tmp_path / "runs"

    def git(*words: str) -> str:
        command = ["git", "-C", str(own), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def source() -> dict[str, str]:
        fresh = [word for name in ("only", "told") for word in ("--fresh", f"committed-{name}")]
        assert command.ratchet(["run", str(own / "committed.py"), "--root", str(root), *fresh]) == 0
        (run,) = root.glob("committed/committed-only/*")
        return (attempts.newest(run / "attempts") or {})["source"]

    own.mkdir()
    (own / "committed.py").write_text(COMMITTED)
    (own / "helper.py").write_text("VALUE = 1\n")
    found = source()
    assert found["own_commit"] is None
    kept = root / ".sources" / found["own_digest"]
    assert {file.name: file.read_text() for file in kept.iterdir()} == {
        "committed.py": COMMITTED, "helper.py": "VALUE = 1\n"
    }  # fmt: skip
    git("init")
    git("add", "committed.py")
    git("commit", "-m", "first")
    untracked = source()
    assert untracked["own_commit"] == git("rev-parse", "HEAD") and untracked["own_dirty_digest"]
    git("add", ".")
    git("commit", "-m", "second")
    clean = source()
    assert clean["own_commit"] == git("rev-parse", "HEAD") and clean["own_dirty_digest"] is None
    (own / "helper.py").write_text("VALUE = 2\n")
    edited = source()
    assert edited["own_commit"] == clean["own_commit"] and edited["own_dirty_digest"]
    assert edited["own_digest"] != clean["own_digest"] and len([*root.glob(".sources/*/helper.py")]) == 2
    capsys.readouterr()
    (run,) = root.glob("committed/committed-only/*")
    assert command.ratchet(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert f"Ratchet's commit {edited['commit'][:12]}" in shown
    assert f"commit of committed.py {clean['own_commit'][:12]} with changes" in shown
    (report,) = root.glob("committed/committed-told/*/report.html")
    page = report.read_text()
    assert edited["own_dirty_digest"][:16] in page and clean["own_commit"][:12] in page


RUNS = """
import ratchet as r

@r.stage(needs="cpu", torch=False)
def script(run, train: r.Script = r.Script(path="train.py"), more: int = 1):
    run.command("python", train.path)

@r.study
def runs():
    return script()
"""


def test_a_script_that_is_not_there_is_told_by_its_key_and_that_it_lies_beside_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relative path is below the folder where the study is started."""
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (own / "runs.py").write_text(RUNS)
    given = ["run", str(own / "runs.py"), "--dry-run", "--set", "train.path=train.py"]  # read once: the default is not
    assert command.ratchet(given) == 2
    told = capsys.readouterr().err
    assert f"train.path: there is no file or folder {elsewhere}/train.py" in told and "beside" not in told
    (own / "train.py").write_text("")
    assert command.ratchet(given) == 2 and f"beside the study: start it in {own}" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- arms side by side

BESIDE = '''
"""Does up help?"""
from typing import Literal

import ratchet as r

@r.stage(needs="cpu", torch=False)
def arm(run, how: Literal["up", "down"], fold: int, by: float = 0.5):
    noise = [0.01, -0.02, 0.03, 0.0, 0.015][fold]
    accuracy = 0.1 * fold + (by + noise if how == "up" else 0.0)
    return {"training": {"best_step": 3, "best_validation_accuracy": accuracy, "higher": ["validation_accuracy"]}}

@r.stage(needs="cpu", torch=False)
def ridge(run):
    return {"accuracy": 0.3}

@r.study
def beside(folds: int = 5):
    arms = {how: [arm(how=how, fold=fold) for fold in range(folds)] for how in ("down", "up")}
    return r.report(arms | {"ridge": ridge()}, metric="accuracy", compare=("up", "down"), question="Does up help?")
'''


def reported(folder: Path, *changes: str, text: str = BESIDE) -> Path:
    page = page_of(folder, text, "beside")
    study = read_study(page, None, [*changes], 42)
    return page.walk(study, Here(folder / "runs", study.name, study.execution))[-1].run.path


def test_arms_side_by_side_are_paired_by_what_varies_and_higher_is_better_where_the_training_says_so(
    tmp_path: Path,
) -> None:
    run = reported(tmp_path)
    result = durable.read_json(run / "result.json")
    assert result["answer"][0] == "Up is better than down." and "0.507" in result["headline"]
    (difference,) = durable.read_json(run / "final_results.json")["differences"]
    differences = [0.51, 0.48, 0.53, 0.5, 0.515]
    assert difference["mean"] == pytest.approx(sum(differences) / 5) and difference["better"] is True
    assert difference["interval"] == pytest.approx(
        list(ttest_1samp(differences, 0).confidence_interval(0.95)), rel=1e-9
    )
    assert "5 folds" in (run / "table.md").read_text() and "| ridge " in (run / "table.md").read_text()
    assert (run / "report.html").is_file() and (run / "figures" / "answer.svg").is_file()
    assert "by exchanges, which do not, 5 folds give no p below 0.062" in result["not_shown"][0], "the p beside < 0.001"
    found = (run / "compared.csv").read_text().splitlines()
    assert found[0] == "arm,fold,accuracy" and len(found) == 11, (
        "the ridge has one number, and none is compared with it"
    )
    assert command.ratchet(["compare", str(run / "compared.csv"), "--pair", "fold", "--higher-is-better"]) == 0


DIVERGES = BESIDE.replace(
    '    return {"training"', '    if (how, fold) in LOST:\n        accuracy = None\n    return {"training"'
)


@pytest.mark.parametrize(
    ("lost", "better", "verdict", "told"),
    [
        ([("up", 1)], True, "Up is better than down. 1 of 11 runs diverged.", "accuracy: up (fold 1).**"),
        ([("up", 1), ("down", 4)], True, "Up is better than down. 2 of 11", "down (fold 4), up (fold 1).**"),
        ([("up", fold) for fold in range(3)], None, "Nothing can be compared. 3 of 11", "**Not comparable: up**"),
        ([("up", fold) for fold in range(5)], None, "Nothing can be compared. 5 of 11", "**Not comparable: up**"),
        ([(how, fold) for how in ("up", "down") for fold in range(5)], None, "Nothing can be", "comparable: up, down"),
    ],
    ids=["one", "one of each", "most", "an arm", "all"],
)
def test_a_number_that_is_none_is_told_as_diverged_and_its_pair_left_out(
    lost: list[tuple[str, int]], better: bool | None, verdict: str, told: str, tmp_path: Path
) -> None:
    """Seen: NaN is refused with the advice to return None, and then all eight trainings end at the report: "it has no
    'score' in its result; give metric one of its numbers: it has none"."""
    run = reported(tmp_path, text=DIVERGES.replace("LOST", repr(lost)))
    result, numbers = (durable.read_json(run / name) for name in ("result.json", "final_results.json"))
    table, rows = (run / "table.md").read_text(), (run / "compared.csv").read_text().splitlines()
    assert result["answer"][0].startswith(verdict) and told in table
    assert [one["better"] for one in numbers["differences"]] == ([] if better is None else [better])
    folds = {fold for _, fold in lost} if better else set()
    assert all(one["seeds"] == 5 - len(folds) for one in numbers["differences"])
    assert table.count("| diverged ") == len(lost) == 11 - len(rows)


@pytest.mark.parametrize("higher", [None, True])
def test_a_sweep_compares_what_the_report_of_its_study_compares(tmp_path: Path, higher: bool | None) -> None:
    text = BESIDE.replace("fold: int, by", "fold: int, seed: int, by").replace("[fold]", "[(fold + seed) % 5]")
    text = text.replace('("up", "down"), question', f'("up", "down"), higher_is_better={higher}, question')
    page = page_of(tmp_path, text if higher is None else text.replace('"higher": [', '"h": ['), "beside")

    def swept(**over: list[object]) -> Path:
        study = read_study(page, None, ["folds=3"], 42)
        return replace(page, over=over).walk(study, Here(tmp_path / "runs", study.name))[-1].run.path

    run = swept(seed=[1, 2, 3], by=[0.5, 0.9])
    found = durable.read_json(run / "final_results.json")["comparisons"]
    compared = {(row["arm"], row["reference"]) for row in found.pop("accuracy")}
    assert found == {} and ("up, by 0.5", "down, by 0.5") in compared
    assert not [arm for arm, reference in compared if arm.startswith("ridge") and not reference.startswith("ridge")]
    (answer, *_) = durable.read_json(run / "result.json")["answer"]
    assert answer.startswith("accuracy: up, by 0.5 is better than down, by 0.5 and up, by 0.9 is better"), answer
    (answer, *_) = durable.read_json(swept(by=[0.5, 0.9]) / "result.json")["answer"]
    assert "one seed" not in answer and "its own report compares the arms of each" in answer


def test_an_answer_that_shows_nothing_says_in_the_terminal_how_many_folds_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside.py").write_text(BESIDE.replace("(by + noise", "(by * noise"))
    assert command.ratchet(["run", str(tmp_path / "beside.py"), "--root", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "\nNo difference is shown over 5 folds.\n" in shown
    (limit,) = [line for line in shown.splitlines() if line.startswith("  not shown: ")]
    run = next(tmp_path.glob("runs/beside/report/*"))
    (difference,) = durable.read_json(run / "final_results.json")["differences"]
    assert f"up against down ({difference['seeds_needed']} folds would show one like this" in limit


@pytest.mark.parametrize(
    ("folds", "told"),
    [
        (1, "With one seed no difference could have been seen"),
        (2, "With 2 folds no difference could have been seen, however large; 3 of such a spread show one of 0.0"),
    ],
)
def test_too_few_pairs_are_told_with_what_could_not_have_been_seen(tmp_path: Path, folds: int, told: str) -> None:
    result = durable.read_json(reported(tmp_path, f"folds={folds}") / "result.json")
    assert result["answer"][0].startswith("No difference is shown: ") and "too few" in result["answer"][0]
    assert told in str(result["not_shown"])


def test_where_no_training_says_what_is_better_nothing_is_called_so(tmp_path: Path) -> None:
    text = BESIDE.replace(
        '"training": {"best_step": 3, "best_validation_accuracy": accuracy, "higher"', '"x": {"accuracy": accuracy, "h"'
    )
    assert durable.read_json(reported(tmp_path, text=text) / "result.json")["answer"][0] == "Up is higher than down."


DRAWN = """
@r.stage(needs="cpu", torch=False)
def drawn(run, fold: int):
    return {"fold": fold}

"""


def reads(call: str) -> str:
    """The study, whose arms are told apart by what they read."""
    text = BESIDE.replace("import ratchet as r\n", f"import ratchet as r\n{DRAWN}")
    text = text.replace('how: Literal["up", "down"], fold: int', 'data, how: Literal["up", "down"], more=None')
    text = text.replace("    noise", '    fold = data.result["fold"]\n    noise', 1)
    text = text.replace("    arms = {", "    of = [drawn(fold=fold) for fold in range(folds)]\n    arms = {")
    return text.replace("arm(how=how, fold=fold)", call)


def test_arms_that_differ_by_what_they_read_are_paired_by_it(tmp_path: Path) -> None:
    """Of calls that got one name the last alone was compared, and the report said `better`."""
    found = (reported(tmp_path, text=reads("arm(of[fold], how=how)")) / "compared.csv").read_text().splitlines()
    assert found[0] == "arm,fold,accuracy" and len(found) == 11
    with pytest.raises(BadInput, match=r"two calls of the arm 'down' have the same seed \(42, 42, 42, 42, 42\)"):
        (tmp_path / "more").mkdir()
        reported(tmp_path / "more", text=reads("arm(of[0], how=how, more=of[fold])"))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('compare=("up", "down")', 'compare=("up", "dwon")', "compare names 'dwon'; the arms are down, up, ridge"),
        ('compare=("up", "down")', "compare=()", "do not pair: down has fold 0, 1, 2, 3, 4, and ridge all"),
        (
            'metric="accuracy"',
            'metric="acuracy"',
            "has no 'acuracy' in its result; did you mean 'accuracy'? give metric",
        ),
        ('"ridge": ridge()', '"ridge": 3', "the arm 'ridge' is no stage call"),
        (
            '["validation_accuracy"]',
            '["validation_accuracy"] * (how == "up")',
            "disagree on whether a higher accuracy is",
        ),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert BESIDE.count(old) == 1
    try:
        run = reported(tmp_path, text=BESIDE.replace(old, new))
    except BadInput as error:
        assert told in str(error)
    else:
        assert told in (durable.read_json(run / "attempts" / "0001.json")["diagnosis"]["summary"])


def test_a_wrong_metric_is_told_once_by_the_first_arm_and_mended_costs_no_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BESIDE.replace("folds: int = 5", 'folds: int = 3, metric: str = "accuracy"')
    (tmp_path / "beside.py").write_text(text.replace('metric="accuracy"', "metric=metric"))
    words = ["run", str(tmp_path / "beside.py"), "--root", str(tmp_path / "runs")]

    def finished() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in tmp_path.glob("runs/beside/beside-*/*/COMPLETE.json")}

    assert command.ratchet([*words, "--set", "metric=acuracy"]) == 2
    said = capsys.readouterr().out
    assert said.count("report: ") == 1 and "has no 'acuracy' in its result; did you mean 'accuracy'?" in said
    assert len(first := finished()) == 1, "the others did not run"
    assert command.ratchet(words) == 0
    assert len(finished()) == 7 and first.items() <= finished().items()


def test_a_notebook_reads_the_finished_stages_as_a_table(tmp_path: Path) -> None:
    reported(tmp_path, "folds=3")
    study = ratchet.open(tmp_path / "runs")["beside"]
    assert study.answer.startswith("Up is better than down.")
    table = study.table()
    arms = table[table.stage == "beside-arm"]
    assert len(table) == 7 and {"run", "how", "fold"} <= {*table.columns} and "by" not in table.columns
    assert sorted(map(str, table.fold)) == ["0", "0", "1", "1", "2", "2", "<NA>"], "none is 2.0"
    ups = arms[arms.how == "up"].sort_values("fold")["training.best_validation_accuracy"]
    assert ups.tolist() == pytest.approx([0.51, 0.58, 0.73])
    run = study.run("beside-ridge")
    assert run.result == {"accuracy": 0.3} and (run.path / "result.json").is_file() and run.metrics().empty
    with pytest.raises(BadInput, match="has no finished 'beside-rigde'; did you mean 'beside-ridge'"):
        study.run("beside-rigde")
    with pytest.raises(
        BadInput, match=r"has 6 finished 'beside-arm'; name a run: there are beside-arm \w{12}, beside-a"
    ):
        study.run("beside-arm")
    with pytest.raises(BadInput, match="there is no study 'besides'; did you mean 'beside'"):
        ratchet.open(tmp_path / "runs")["besides"]


def test_a_result_without_a_report_is_listed_shown_and_opened_with_its_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = walked(tmp_path)[-1].run.path
    values = "arms.up_0 3.5, arms.up_1 4.5, arms.down_0 2.5, arms.down_1 3.5, first [3.5, 2.5]"
    assert ratchet.open(tmp_path / "runs")["which"].answer == values
    for words in (["list", str(tmp_path / "runs")], ["show", str(run)]):
        assert command.ratchet(words) == 0 and values in capsys.readouterr().out
