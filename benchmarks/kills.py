"""A study that is killed by SIGKILL again and again, beside one that is left alone: are all outputs equal?

python -m benchmarks.kills --study robustness --profile smoke --device cuda --kills 4
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import language
from storage import durable
from tests.conftest import REPOSITORY

SEED = 20261127
EARLIEST_SECONDS, LATEST_SECONDS = 10.0, 25.0
"""When an attempt is killed, after its start: not before it comes to work at all, mostly before it is done."""


def main() -> None:
    options = language.arguments(
        __doc__.splitlines()[0], study="robustness", profile="smoke", device="cpu", kills=4, kill_for_seconds=90.0
    )
    chance, began = random.Random(SEED), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        roots = {name: Path(folder) / name for name in ("undisturbed", "killed")}
        undisturbed = started(options, roots["undisturbed"])
        kills = attempts = 0
        while True:
            killed, attempts = started(options, roots["killed"]), attempts + 1
            strikes = kills < options.kills and time.monotonic() - began < options.kill_for_seconds
            try:
                code = killed.wait(chance.uniform(EARLIEST_SECONDS, LATEST_SECONDS) if strikes else None)
                break
            except subprocess.TimeoutExpired:
                os.killpg(killed.pid, signal.SIGKILL)
                killed.wait()
                kills += 1
        codes = (undisturbed.wait(), code)
        found = {name: outputs(root) for name, root in roots.items()}
        if any(codes):
            sys.exit(f"exit codes {codes}: " + (Path(folder) / "killed.log").read_text()[-1000:])
    alike = sum(found["killed"].get(name) == digest for name, digest in found["undisturbed"].items())
    sys.stdout.write(
        f"{options.study} {options.profile}: {kills} kills in {attempts} attempts, {alike} of "
        f"{len(found['undisturbed'])} outputs equal ({len(found['killed'])} after the kills), "
        f"{time.monotonic() - began:.0f} s\n{language.machine()}\n"
    )


def started(options: Any, root: Path) -> subprocess.Popen[bytes]:
    """The study's command, in a process group and with a Prefect of its own."""
    command = [sys.executable, "-m", f"flows.{options.study}", "--profile", options.profile, "--root", str(root)]
    command += ["--set", f"execution.device={options.device}", "--set", "execution.checkpoint_every_seconds=1"]
    log = (root.parent / f"{root.name}.log").open("ab")
    environment = os.environ | {"PREFECT_HOME": str(root.parent / f"{root.name}-prefect")}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log, start_new_session=True)


def outputs(root: Path) -> dict[str, str]:
    """Every output that a stage's marker lists, and its digest."""
    found = {}
    for marker in root.glob("*/*/*/COMPLETE.json"):
        for name, described in durable.read_json(marker)["outputs"].items():
            found[f"{marker.parent.relative_to(root)}/{name}"] = described["sha256"]
    return {name: digest for name, digest in found.items() if not name.endswith("/stage.json")}


if __name__ == "__main__":
    main()
