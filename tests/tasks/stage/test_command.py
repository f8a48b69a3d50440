"""A script of somebody as a stage: what it left torn is not used, its stop is its own, exit code 0 is not enough."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.dag.walk import Handle
from storage import durable
from storage.errors import BadInput, CheckFailed
from storage.inside import Outside
from storage.run_directory import SCRATCH
from tasks.stage import command, scratch
from tasks.stage.command import Script
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.run import Stage, StageRun
from tasks.stage.scratch import ScratchCheckpoints
from tasks.stage.study import StageConfiguration
from tests.conftest import REPOSITORY
from tests.tasks.tiny import Here, stage_run

PATIENCE = 60.0

COUNTS = """
import json, os, signal, sys, time
begin, wanted, name = 0, int(sys.argv[1]), sys.argv[2]
os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
if sys.argv[3:]:
    begin = json.load(open(sys.argv[3]))["step"]
    print("begins at", begin, sorted(os.listdir(".")), open(name).read() if os.path.exists(name) else "")
for step in range(begin + 1, wanted + 1):
    print("step", step, "of", wanted, end=sys.argv[4] if sys.argv[4:] else "\\n")
    with open(name.replace("N", str(step)).replace("L", f"{1 / step:.4f}"), "w") as file:
        file.write('{"step": ')
        file.flush()
        {body}
        file.write(str(step) + "}")
open("whole.txt", "w").write(str(wanted))
"""


class CountsConfig(StageConfiguration):
    """counts: a script that counts, and keeps where it is."""

    numerics = Numerics(torch=False)
    script: Script = scientific(description="The script.")
    checkpoints: str = scientific("count-*", description="What it goes on from.")
    steps: int = scientific(5, description="How far it counts.")
    leaves: str = scientific("whole.txt", description="What must be there.")


def counts(run: StageRun, config: CountsConfig) -> dict[str, Any]:
    name = (
        config.checkpoints.replace("epoch*", "epochN_lossL")
        .replace("net*", "net18")
        .replace("version_*=*", "version_0=N")
        .replace("seed*", "seedN_of7")
        .replace("*", "N")
    )
    metrics = run.command(
        "python", config.script.path, config.steps, name, checkpoints=config.checkpoints, resume=["{checkpoint}"],
        leaves=[config.leaves], progress=r"step (\d+) of (\d+)", save_seconds=2.0,
    )  # fmt: skip
    return {"log": run.record.log_file.read_text() if run.record else "", "metrics": metrics}


COUNT = Stage("counts", CountsConfig, f"{__name__}:counts")


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LOOK_EVERY_SECONDS", 0.02)


def attempted(root: Path, body: str = "pass", **configured: object) -> Handle:
    """One more attempt with a script whose checkpoint is half written when it does `body`."""
    root.mkdir(exist_ok=True)
    (script := root / "count.py").write_text(COUNTS.replace("{body}", body))
    return Here(root / "runs", "own")(COUNT, CountsConfig(script=Script(path=str(script)), **configured))


def scratch_of(handle: Handle) -> Path:
    return handle.run.path / SCRATCH


def listed(handle: Handle) -> list[str]:
    states = (handle.run.checkpoints / str(step) / "state.json" for step in sorted(durable_steps(handle)))
    return [Path(durable.read_json(state)["scratch"]).name for state in states]


def durable_steps(handle: Handle) -> list[int]:
    return [int(folder.name) for folder in handle.run.checkpoints.glob("[0-9]*")]


def test_a_script_that_ends_leaves_its_output_its_log_and_its_progress(tmp_path):
    handle = attempted(tmp_path)
    assert handle.outcome.end_state == "finished"
    assert (handle.run.path / "whole.txt").read_text() == "5"
    assert "step 4 of 5" in durable.read_json(handle.run.result_file)["log"]
    assert durable.read_json(handle.run.progress_file)["step"] == 5


def test_an_edited_script_is_another_run_and_one_elsewhere_is_not(tmp_path):
    names = [attempted(tmp_path / folder, body).run.path.name for folder, body in (("a", ""), ("b", ""), ("c", "1"))]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("checkpoints", ["count-*", "last.json", "out/last.json", "resnet18.json"])
def test_a_checkpoint_that_the_kill_tore_is_not_gone_on_from(tmp_path, monkeypatch, checkpoints):
    """The script is killed within its fourth, and has removed the third: `last.json` is written over and over, and so
    is `resnet18.json`, whose number is no step."""
    monkeypatch.setattr(scratch, "QUIET_SECONDS", 1.0)
    dies = f"""
        if step == 4 and not os.path.exists("{tmp_path}/died"):
            open("{tmp_path}/died", "w")
            if os.path.exists("count-3"):
                os.remove("count-3")
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        file.write(f"{{step}}")
        file.write("}}")
        file.close()
        deadline = time.monotonic() + 20
        while step < 4 and not os.path.exists(f"../checkpoints/{{step}}") and time.monotonic() < deadline:
            time.sleep(0.01)
        continue
"""
    handle = attempted(tmp_path, dies.strip(), checkpoints=checkpoints)
    assert handle.outcome.end_state == "crashed" and "signal 9" in handle.outcome.message
    handle = attempted(tmp_path, dies.strip(), checkpoints=checkpoints)
    assert handle.outcome.end_state == "finished"
    (begins,) = (line for line in durable.read_json(handle.run.result_file)["log"].splitlines() if "begins at" in line)
    assert "begins at 3 [" in begins and "count-4" not in begins
    assert begins.endswith("]" if "*" in checkpoints else '{"step": 3}'), "a script may look for it there by itself"


def test_what_is_gone_on_from_is_not_torn_with_the_file_that_is_written_over(tmp_path):
    """`net*.json` says that 18 is its step, and the script writes it over."""
    dies = f"""
        if step == 3:
            file.write("3}}")
            file.close()
            sys.exit(3)
        if step == 4 and not os.path.exists("{tmp_path}/died"):
            open("{tmp_path}/died", "w")
            os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = [attempted(tmp_path, dies.strip(), checkpoints="net*.json").outcome for _ in range(3)]
    assert ["exit code 3" in ended[0].message, "signal 9" in ended[1].message, ended[2].message] == [True, True, ""]


@pytest.mark.parametrize(
    ("pattern", "names", "steps"),
    [
        ("version_*=*", ["version_0=5", "version_0=6"], [5, 6]),
        ("seed*", ["seed5_of7", "seed6_of7"], [11, 12]),  # 7, then what rises: no number of theirs is an order
    ],
)
def test_those_of_one_number_do_not_replace_one_another(tmp_path, pattern, names, steps):
    """Seen: those of an epoch all had its number, so the one before was gone."""
    handle = attempted(tmp_path, "sys.exit(3) if step == 6 else None", checkpoints=pattern, steps=6)
    assert listed(handle) == names and sorted(durable_steps(handle)) == steps
    assert attempted(tmp_path, checkpoints=pattern).outcome.end_state == "finished"


def test_the_step_is_the_last_whole_number_and_not_a_decimal_one_or_one_of_the_pattern(tmp_path):
    """Seen: of `epoch7_loss0.1429.pt` 1429 was the step, so the two worst were kept."""
    fails = "sys.exit(3) if step == 8 else None"
    handle = attempted(tmp_path, fails, checkpoints="epoch*.json", steps=9)
    assert listed(handle) == ["epoch7_loss0.1429.json", "epoch8_loss0.1250.json"] and sorted(durable_steps(handle)) == [
        7,
        8,
    ]


@pytest.mark.parametrize("checkpoints", ["count-*", "last.json"])
def test_one_that_saves_again_and_again_goes_on_by_names_with_numbers_or_is_told_that_it_cannot(
    tmp_path, monkeypatch, checkpoints
):
    """Of numbered ones all but the latest are whole; one that is always written over is never seen at rest."""
    monkeypatch.setattr(scratch, "QUIET_SECONDS", 30.0)
    dies = f"""
        file.write(f"{{step}}")
        file.write("}}")
        file.close()
        while checkpoints_wait(step):
            time.sleep(0.01)
        if step == 4 and not os.path.exists("{tmp_path}/died"):
            open("{tmp_path}/died", "w")
            os.kill(os.getpid(), signal.SIGKILL)
        continue
"""
    waits = f"""
def checkpoints_wait(step):
    return {checkpoints == "count-*"} and step > 1 and not os.path.exists(f"../checkpoints/{{step - 1}}")
"""
    monkeypatch.setattr(sys.modules[__name__], "COUNTS", COUNTS.replace("begin, wanted", f"{waits}\nbegin, wanted", 1))
    handle = attempted(tmp_path, dies.strip(), checkpoints=checkpoints)
    assert handle.outcome.end_state == "crashed"
    first = (handle.run.attempts / "0001.log").read_text()
    handle = attempted(tmp_path, dies.strip(), checkpoints=checkpoints)
    assert handle.outcome.end_state == "finished"
    second = durable.read_json(handle.run.result_file)["log"]
    if checkpoints == "count-*":
        assert "begins at 3 [" in second and "goes on from count-3, kept when step 3 was told" in second
    else:
        assert "no checkpoint last.json is kept: last.json changed again within 30 s" in first
        assert "begins anew: no attempt before left a whole checkpoint last.json" in second


def test_one_that_changes_while_it_is_listed_is_not_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "QUIET_SECONDS", 0.0)
    digest = scratch._digest

    def changes(file: Path) -> dict[str, object]:
        with (file.parents[2] / file.name).open("a") as more:  # what this is a copy of
            more.write(" ")
        return digest(file)

    monkeypatch.setattr(scratch, "_digest", changes)
    assert not durable_steps(attempted(tmp_path, "time.sleep(0.2)"))


def test_a_request_to_stop_lets_it_save_and_the_next_attempt_goes_on_there(tmp_path):
    saves = f"""
        if step == 3 and not sys.argv[3:]:
            signal.signal(signal.SIGTERM, lambda *_: (file.write("3}}"), file.close(), sys.exit(9)))
            open("{tmp_path}/ready", "w")
            time.sleep(60)
"""
    threading.Thread(target=terminate_when, args=(tmp_path / "ready",)).start()
    handle = attempted(tmp_path, saves.strip())
    assert handle.outcome.end_state == "sigterm" and listed(handle)[-1] == "count-3"
    handle = attempted(tmp_path, saves.strip())
    assert handle.outcome.end_state == "finished"
    assert "begins at 3" in durable.read_json(handle.run.result_file)["log"]


def terminate_when(ready: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def test_one_that_does_not_stop_is_ended_with_all_that_it_started(tmp_path):
    stays = f"""
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("{tmp_path}/ready", "w").write(str(os.getpid()))
            time.sleep(600)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
"""
    threading.Thread(target=terminate_when, args=(tmp_path / "ready",)).start()
    handle = attempted(tmp_path, stays.strip())
    assert handle.outcome.end_state == "sigterm" and not durable_steps(handle), "torn: it was ended within a write"
    assert is_gone(int((tmp_path / "ready").read_text() or 0))


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


LEAVES = {
    "a child": "os.fork() == 0",
    "a session of its own": "os.fork() == 0 and os.setsid() is None",
    "a daemon": "os.fork() == 0 and os.setsid() is None and os.fork() == 0",
}
"""Ways to begin a process, as torchrun does with each worker; a group's end does not reach the last two."""


@pytest.mark.parametrize("way", LEAVES)
def test_a_stage_that_ends_well_ends_what_its_command_left_running(tmp_path, way):
    body = f"""
        if step == 5 and {LEAVES[way]}:
            open("{tmp_path}/ready", "w").write(str(os.getpid()))
            time.sleep(600)
        while step == 5 and not (os.path.exists("{tmp_path}/ready") and open("{tmp_path}/ready").read()):
            time.sleep(0.01)
"""
    assert attempted(tmp_path, body.strip()).finished
    assert not psutil.pid_exists(int((tmp_path / "ready").read_text()))


@pytest.mark.parametrize("way", LEAVES)
def test_a_killed_attempt_takes_its_script_with_it(tmp_path, way):
    """By SIGKILL: else two would write to one folder."""
    waits = f'{LEAVES[way]} and open("{tmp_path}/ready", "w").write(str(os.getpid())); time.sleep(600)'
    code = f"""
from pathlib import Path
from tests.tasks.stage.test_command import attempted
attempted(Path({str(tmp_path)!r}), {waits!r})
"""
    attempt = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    deadline = time.monotonic() + PATIENCE
    while not ((tmp_path / "ready").exists() and (tmp_path / "ready").read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    attempt.kill()
    attempt.wait()
    assert is_gone(int((tmp_path / "ready").read_text()))


LINKS = """
        os.makedirs("wandb/run-1", exist_ok=True)
        if not os.path.islink("wandb/latest-run"):
            os.symlink("run-1", "wandb/latest-run")
            os.symlink("/nowhere", "debug.log")
"""
DIES = """
        if step == 4 and not sys.argv[3:]:
            file.write("4}")
            file.close()
            sys.exit(3)
"""


def goes_on(root: Path, body: str, checkpoints: str, **configured: object) -> str:
    """The log of the attempt after one that its script ended; that finished."""
    assert "exit code 3" in attempted(root, body, checkpoints=checkpoints, **configured).outcome.message
    handle = attempted(root, body, checkpoints=checkpoints, **configured)
    assert handle.finished, handle.outcome.message
    return durable.read_json(handle.run.result_file)["log"]


def test_links_that_a_script_makes_in_its_folder_hinder_no_next_attempt(tmp_path):
    """Seen: wandb's latest-run made each start after a kill bad input."""
    assert "begins at 4" in goes_on(tmp_path, LINKS.strip() + DIES, "count-*")


LINKED = """
import json, os, shutil, sys
begin, wanted, link = 0, int(sys.argv[1]), sys.argv[2]
if given := sys.argv[3:]:
    begin = json.load(open(given[0] + "/state.json" if os.path.isdir(given[0]) else given[0]))["step"]
    print("begins at", begin)
for step in range(begin + 1, wanted + 1):
    print("step", step, "of", wanted)
    os.makedirs(f"step{step}", exist_ok=True)
    with open(f"step{step}/state.json", "w") as file:
        file.write('{"step": %d}' % step)
    os.makedirs(os.path.dirname(link) or ".", exist_ok=True)
    leads_to = f"step{step}" if link == "latest" else f"step{step}/state.json"
    os.symlink({target}, "new")
    os.replace("new", link)
    shutil.rmtree(f"step{step - 1}", ignore_errors=True)
    {body}
open("whole.txt", "w").write(str(wanted))
"""
BESIDE = "os.path.relpath(leads_to, os.path.dirname(link) or '.')"


@pytest.mark.parametrize("link", ["last.json", "deep/last.json", "latest"])
def test_a_newest_checkpoint_that_is_a_link_is_kept_with_what_it_leads_to(tmp_path, monkeypatch, link):
    """Seen: "there is none", and a kill would have cost all. The script replaces its link and removes what is old."""
    monkeypatch.setattr(sys.modules[__name__], "COUNTS", LINKED.replace("{target}", BESIDE))
    assert "begins at 4" in goes_on(tmp_path, "step == 4 and not given and sys.exit(3)", link)


def test_a_checkpoint_that_leads_out_of_the_folder_is_refused_by_name_at_the_first(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.json").write_text('{"step": 1}')
    outside = LINKED.replace("{target}", f"'{tmp_path}/elsewhere.json'")
    monkeypatch.setattr(sys.modules[__name__], "COUNTS", outside)
    refused = attempted(tmp_path, checkpoints="last.json").outcome
    assert refused.exit_code == 2 and f"last.json leads to {tmp_path}/elsewhere.json, out of" in refused.message
    assert (tmp_path / "elsewhere.json").exists()


@pytest.mark.parametrize(("leads_to", "kept"), [("state.json", True), ("../../../../count.py", False)])
def test_links_within_a_checkpoint_stay_links_and_none_leads_out_of_it(tmp_path, monkeypatch, leads_to, kept):
    monkeypatch.setattr(sys.modules[__name__], "COUNTS", LINKED.replace("{target}", BESIDE))
    body = f"os.path.lexists('latest/best') or os.symlink({leads_to!r}, 'latest/best')"
    if kept:
        assert "begins at 4" in goes_on(tmp_path, f"{body}; step == 4 and not given and sys.exit(3)", "latest")
        (copy,) = tmp_path.glob("runs/own/counts/*/scratch/.copies/4.*/step4/best")
        assert copy.readlink() == Path("state.json")
    else:
        assert "/best is a link to" in attempted(tmp_path, body, checkpoints="latest").outcome.message


def listing(folder: Path, pattern: str) -> ScratchCheckpoints:
    run = stage_run(folder)
    return ScratchCheckpoints(run.scratch, pattern, run.checkpoints)


def test_what_vanishes_while_it_is_looked_at_is_passed_over(tmp_path, monkeypatch):
    """Seen: a script that keeps its last 3 removed one at the wrong moment, and the stage crashed."""
    own = listing(tmp_path, "count-*")
    for step in (1, 2, 3):
        (own._folder / f"count-{step}").write_text(str(step))
    remove = scratch._written_at
    monkeypatch.setattr(
        scratch, "_written_at", lambda path: [path.unlink() for _ in "1" if path.name == "count-1"] or 0
    )
    own.look()
    monkeypatch.setattr(scratch, "_written_at", remove)
    copied = scratch._digest
    monkeypatch.setattr(scratch, "_digest", lambda file: [(own._folder / file.name).unlink(), copied(file)][1])
    own.add(own._folder / "count-3")
    assert own._checkpoints.steps() == [2] and len(list((own._folder / ".copies").iterdir())) == 1


def test_a_second_name_whose_making_was_not_answered_is_taken(tmp_path, monkeypatch):
    """Seen of NFS: it links, loses the answer, and says that the name exists."""
    (tmp_path / "a").write_text("a")
    link = os.link

    def loses(*names: str) -> None:
        link(*names)
        raise FileExistsError(*names)

    monkeypatch.setattr(os, "link", loses)
    scratch._link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").samefile(tmp_path / "a")


@pytest.mark.parametrize(
    "name", ["../../../../../../victim", "/victim", ".copies/1.1/../../victim", ".copies/1.1/out/victim"]
)
def test_a_list_that_names_a_file_outside_replaces_none(tmp_path, name):
    """Seen: `.bashrc` was replaced, of a half-finished run that somebody gave."""
    (victim := tmp_path / "victim").write_text("mine")
    own = listing(tmp_path, "last.json")
    (own._folder / "last.json").write_text("theirs")
    own.add(own._folder / "last.json")
    copy = own._folder / next(iter(own._copies()[1])).relative_to(own._folder) / "last.json"
    (own._folder / "out").symlink_to(tmp_path)
    (there := own._folder / ".copies/1.1/out").mkdir(parents=True)
    copy.replace(there / "victim")
    own._checkpoints.save(1, {}, {"scratch": name.replace("/victim", str(victim), name == "/victim"), "files": {
        "victim": scratch._digest(there / "victim")}})  # fmt: skip
    with pytest.raises((CheckFailed, Outside)):
        own.newest()
    assert victim.read_text() == "mine"


def test_40_mb_without_a_line_end_are_read_in_time_that_grows_with_their_length(tmp_path):
    """Seen: the stage looked through all that waited for each 64 KB, and was ended after 540 s."""
    run = stage_run(tmp_path)
    run.command("python", "-c", "import sys; sys.stdout.write('x' * 40_000_000 + '\\nstep 3')", progress=r"step (\d+)")
    assert run.progress.step == 3


def test_a_name_that_is_no_utf8_ends_nothing(tmp_path):
    body = 'os.makedirs("out", exist_ok=True); [open(n, "w").write("1") for n in (b"count-1_caf\\xe9", b"out/\\xe9")]'
    assert "exit code 3" in attempted(tmp_path, body + DIES, leaves="out").outcome.message
    handle = attempted(tmp_path, body + DIES, leaves="out")
    assert handle.finished and list((handle.run.path / "out").iterdir())


@pytest.mark.parametrize(
    ("pattern", "line", "progress"),
    [
        (r"step (\d+)(?: of (\d+))?", "step 3", (3, 0)),
        (r"step (\d+)?", "step", (0, 0)),
        (r"iter ([\d,]+)/([\d,]+)", "iter 1,000/5,000", (1000, 5000)),
        (r"iter ([\d,]+)/([\d,]+)", "iter 1,0/,,", (0, 0)),
        (r"epoch ([\d.]+) of ([\d.]+)", "epoch 1.50 of 3.00", (0, 0)),
        (r"step (\S+) of (\S+)", "step 9999999999999999999999 of 1e3", (0, 0)),
        (r"step (\S+) of (\S+)", "step ³ of -1", (0, 0)),
    ],
)
def test_what_cannot_be_read_as_a_number_is_no_progress(tmp_path, pattern, line, progress):
    run = stage_run(tmp_path)
    run.command("echo", line, progress=pattern)
    assert (run.progress._now["step"], run.progress._now["total"]) == progress


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("step 49 of 300, loss 0.25", {"step": 49, "loss": 0.25}),
        (
            "iter 7: loss=1e-3 val/acc: .5 time 12.1ms mfu 3.1 lr 0.1",
            {"iter": 7, "loss": 1e-3, "val/acc": 0.5, "lr": 0.1},
        ),
        ("step 3 loss nan it/s 4.0 eta 12", {"step": 3}),
    ],
)
def test_a_command_returns_the_metrics_of_its_last_line_of_progress(tmp_path, line, metrics):
    run = stage_run(tmp_path)
    assert run.command("printf", f"{line}\n{'no progress'}\n", progress=r"(?:step|iter) (\d+)") == metrics


def test_the_metrics_of_a_script_that_had_nothing_left_to_do_are_those_of_its_checkpoint(tmp_path):
    does = "sys.exit((file.write('5' + chr(125)), file.close(), 3)[2]) if step == 5 and not sys.argv[3:] else None"
    assert "exit code 3" in attempted(tmp_path, does).outcome.message
    assert durable.read_json(attempted(tmp_path, does).run.result_file)["metrics"] == {"step": 5}


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"progress": "step"}, "has 0 groups"),
        ({"progress": "(a)(b)(c)"}, "has 3 groups"),
        ({"progress": "step ("}, "is no regular expression"),
        ({"checkpoints": "../*.pt"}, "'../*.pt' names nothing inside"),
        ({"leaves": ["/out"]}, "'/out' names nothing inside"),
    ],
)
def test_what_a_command_is_given_wrongly_is_told_before_it_begins(tmp_path, given, refused):
    with pytest.raises(BadInput, match=re.escape(refused)):
        stage_run(tmp_path).command("touch", tmp_path / "begun", **given)
    assert not (tmp_path / "begun").exists()


def test_an_output_whose_link_leads_nowhere_or_in_a_circle_is_named(tmp_path):
    for name, target in {"away": "nowhere", "round": "."}.items():
        body = (
            f"os.makedirs('out', exist_ok=True); os.path.lexists('out/{name}') or os.symlink({target!r}, 'out/{name}')"
        )
        failed = attempted(tmp_path / name, f"{body}; open('out/a', 'w').write('a')", leaves="out").outcome
        assert (failed.end_state, f"out/{name} leads to {target}" in failed.message) == ("check_failed", True)


def test_exit_code_0_without_what_it_was_to_leave_is_a_failed_check(tmp_path):
    handle = attempted(tmp_path, leaves="model.pt")
    assert handle.outcome.end_state == "check_failed"
    assert "leaves model.pt in the scratch folder: measured exit code 0, and count-1, count-2" in handle.outcome.message
    assert not handle.finished


def test_a_script_that_ended_well_is_not_done_again_when_its_output_is_published_no_more(tmp_path, monkeypatch):
    """It finds that all is done and writes nothing, as one does that fails at once; and yet the work is there."""
    does = "open('best.pt', 'w').write('2') if step == 2 else None"
    monkeypatch.setattr(command, "_publish", lambda *_: sys.exit(1))
    assert not attempted(tmp_path, does, leaves="best.pt").finished
    monkeypatch.undo()
    assert attempted(tmp_path, does, leaves="best.pt").outcome.end_state == "finished"


def test_copies_that_kills_tore_do_not_push_out_what_is_kept(tmp_path):
    """Seen: two of them counted as the newest, and all that was listed was gone."""
    ends = "(file.write(str(step) + chr(125)), file.close(), sys.exit(3))"
    fails = f"{ends} if step == (5 if sys.argv[3:] else 3) else None"
    handle = attempted(tmp_path, fails)
    for step in ("7.1", "8.1"):
        (scratch_of(handle) / ".copies" / step).mkdir()
    handle = attempted(tmp_path, fails)
    assert listed(handle)[-2:] == ["count-4", "count-5"] and sorted(durable_steps(handle))[-2:] == [4, 5]
    assert attempted(tmp_path, fails).outcome.end_state == "finished"


@pytest.mark.parametrize("then", ["fails at once", "saves more", "writes it"])
def test_what_an_attempt_before_left_counts_only_if_this_one_did_something(tmp_path, then):
    """Seen: `train.py | tee log` failed at once, the pipe gave 0, and the best.pt before the kill was the result."""
    does = f"""
        if sys.argv[3:] and {then == "fails at once"}:
            os.remove("count-4")
            sys.exit(0)
        if step == 2 or {then == "writes it"}:
            open("best.pt", "w").write(str(step))
        if step == 4 and not sys.argv[3:]:
            os.kill(int(open(f"/proc/{{os.getppid()}}/stat").read().split()[3]), signal.SIGKILL)  # the guard's parent
            time.sleep(60)
        file.write(f"{{step}}")
        file.write("}}")
        file.close()
        while step == 3 and not os.path.exists("../checkpoints/3"):
            time.sleep(0.01)
        continue
"""
    code = f"""
from pathlib import Path
from tests.tasks.stage.test_command import attempted
attempted(Path({str(tmp_path)!r}), {does.strip()!r}, leaves="best.pt")
"""
    first = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    assert first.returncode == -signal.SIGKILL
    handle = attempted(tmp_path, does.strip(), leaves="best.pt")
    log = (handle.run.attempts / "0002.log").read_text()
    assert "goes on from" in log and "is kept: there is none" not in log
    assert handle.finished == (then != "fails at once")
    if not handle.finished:
        assert "did its work: measured exit code 0, best.pt of an attempt before" in handle.outcome.message
    else:
        assert (handle.run.path / "best.pt").read_text() == ("5" if then == "writes it" else "2")


def test_another_exit_code_is_told_with_the_last_lines(tmp_path):
    handle = attempted(tmp_path, 'sys.exit("the disk is on fire")')
    assert handle.outcome.end_state == "crashed"
    assert "ended with exit code 1; its last lines:\nstep 1 of 5\nthe disk is on fire" in handle.outcome.message


def test_checkpoints_that_are_all_damaged_begin_nothing_anew(tmp_path):
    fails = "sys.exit(3) if step == 4 else None"
    handle = attempted(tmp_path, fails)
    assert listed(handle) == ["count-3", "count-4"], "it ended by itself: so what it left is as it wanted it"
    for file in scratch_of(handle).glob("count-*"):
        file.write_text("{}")
    assert attempted(tmp_path, fails).outcome.end_state == "check_failed"


def test_a_program_that_is_not_there_is_bad_input(tmp_path, monkeypatch):
    monkeypatch.setattr(command.sys, "executable", "/nowhere/python")
    assert "/nowhere/python cannot be started: No such file" in attempted(tmp_path).outcome.message
