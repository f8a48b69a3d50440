"""docs/going-on.md is executed as it stands, and killed: its study goes on, with the bytes of an undisturbed run."""

import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage import durable
from tasks.stage.run import StageRun
from tests.conftest import REPOSITORY
from tests.forks import QUICK, Forks

DOCUMENT = (REPOSITORY / "docs" / "going-on.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))

RUDE = {
    "mine.py": {
        "        judged = [number": (
            "        run.metrics.append({'fold': fold})\n"
            "        (run.scratch / f'{penalty}-{fold}').is_symlink() or "
            "(run.scratch / f'{penalty}-{fold}').symlink_to('/nowhere')\n"
            "        child = os.fork() or os._exit(0)\n"
            "        os.waitpid(child, 0)\n"
        ),
        "        for batch in torch.randperm": "        run.metrics.append({'epoch': epoch})\n",
        "    rows = torch.arange(640)": "    os.path.lexists(me := run.scratch / 'me') or me.symlink_to('.')\n",
        "        save_steps=20": "        save_total_limit=1,\n",
        "from itertools": "import os\n",
    },
    "train.py": {
        "        torch.save(state": (
            "        torch.save(state, options.output / f'step{step + 1}.pt')\n"
            "        os.symlink(f'step{step + 1}.pt', 'new')\n"
            "        os.replace('new', 'last.pt')\n"
            "        [old.unlink() for old in options.output.glob('step*.pt') if old.name != f'step{step + 1}.pt']\n"
            "        if os.fork() == 0 and os.setsid() is None and os.fork() == 0:\n"
            "            open(f'pid-{os.getpid()}', 'w').close()\n"
            "            time.sleep(600)\n"
            "        continue\n"
        ),
        "import argparse": "import os\nimport time\n",
    },
}
"""What else the study of the page does: rows, links, forks, daemons, and a checkpoint that leads to one that goes."""


def rudely(name: str, text: str) -> str:
    for place, more in RUDE[name].items():
        assert place in text
        text = text.replace(place, more + place, 1)
    return text


WALK = (
    QUICK.format(quiet=0.1)
    + """
import os, sys, time
import tests.tasks.tiny
from deployments.dag.page import load_page
from flows.command.settings import read_study
update = progress.Progress.update
progress.Progress.update = lambda *given, **named: update(*given, **named) or time.sleep(0.03)  # time to be killed in
class Here(tests.tasks.tiny.Here):
    def __call__(self, *given, **inputs):
        handle = super().__call__(*given, **inputs)
        if handle.outcome and handle.outcome.exit_code:
            os._exit(handle.outcome.exit_code)
        return handle
sys.path.insert(0, os.getcwd())
page = load_page("mine.py")
page.walk(read_study(page, None, {changes}, None), Here("{root}", "mine"))
"""
)
"""The study of the page, as `ratchet run mine.py` makes it, without Prefect."""


class Study:
    """The study in a folder, started in processes of its own."""

    def __init__(self, folder: Path, files: dict[str, str], forks: Forks) -> None:
        self.folder, self._forks, self.said = folder, forks, ""
        for name, text in files.items():
            (folder / name).write_text(
                text.replace("    if step % 50 ==", "    time.sleep(0.004)\n    if step % 50 ==").replace(
                    "import argparse", "import argparse\nimport time", 1
                )
            )

    def run(
        self,
        root: Path,
        strike: Callable[[], bool] = lambda: False,
        number: int = signal.SIGKILL,
        changes: Sequence[str] = (),
    ) -> int:
        """One start of the study, which gets this signal once `strike` sees its moment; returns its exit code."""
        walk = WALK.replace("{changes}", repr(changes)).replace("{root}", str(root))
        code, self.said = self._forks.run(self.folder, first=walk, strike=strike, number=number)
        return code


def further(root: Path, stage: str, least: int) -> Callable[[], bool]:
    """Whether a stage came so many steps (of checkpoints, or parts of records) further than now."""

    def made() -> int:
        steps = [int(folder.name) for folder in root.glob(f"mine/{stage}/*/checkpoints/[0-9]*")]
        return max([sum(1 for _ in root.glob(f"mine/{stage}/*/records/*.json")), *steps])

    begin = made()
    return lambda: made() >= begin + least


def outputs(root: Path) -> dict[str, bytes]:
    """What the markers list, without stage.json and a Trainer's arguments, which tell limits and folders, and without
    the loss that a Trainer logs: its mean begins anew where it goes on."""
    return {
        f"{marker.parent.name}/{name}": re.sub(rb'"loss":[\d.]+', b"", (marker.parent / name).read_bytes())
        for marker in root.glob("mine/*/*/COMPLETE.json")
        for name in durable.read_json(marker)["outputs"]
        if name not in ("stage.json", "model/training_args.bin")
    }


def is_script(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline")
    return command.exists() and b"train.py" in command.read_bytes()


@pytest.mark.drawn
@pytest.mark.parametrize("manner", ["study", "rude_study"])
def test_each_way_is_killed_and_stopped_and_ends_with_the_bytes_of_an_undisturbed_study(tmp_path, forks, manner):
    (folder := tmp_path / "mine").mkdir()
    study = Study(folder, FILES if manner == "study" else {name: rudely(name, FILES[name]) for name in FILES}, forks)
    assert study.run(tmp_path / "whole") == 0, study.said[-3000:]
    whole, root = outputs(tmp_path / "whole"), tmp_path / "killed"
    strikes = [
        (stage, step, number)
        for stage, steps in {"folds": (4, 4), "loop": (3, 3), "script": (1, 1), "trainer": (20, 20)}.items()
        for step, number in zip(steps, (signal.SIGKILL, signal.SIGTERM), strict=True)
    ]
    codes = [study.run(root, further(root, f"mine-{stage}", step), number) for stage, step, number in strikes]
    assert codes == [-9, 75] * 4
    assert study.run(root) == 0, study.said[-3000:]
    assert outputs(root).keys() == whole.keys()
    assert [name for name, data in outputs(root).items() if data != whole[name]] == []
    left = [int(file.name.partition("-")[2]) for file in tmp_path.glob("*/mine/mine-script/*/scratch/pid-*")]
    assert bool(left) == (manner == "rude_study") and not [pid for pid in left if is_script(pid)]


def test_its_table_names_what_there_is():
    """Each is an attribute of a run, or of what one has."""
    table = DOCUMENT.partition("## What `run` gives you")[2]
    names = re.findall(r"`run\.([\w.]+)", table)
    assert len(names) >= 16
    stage_run = {*dir(StageRun), "progress", "stop", "log", "directory"}
    assert {name.partition(".")[0] for name in names} <= stage_run
