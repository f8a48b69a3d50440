"""What it costs to wait for a study on SLURM: cells of three stages each, beside submitit (`make .venv-peers`).

    python -m benchmarks.waiting --cells 20

Both sides submit and wait in one process on one real cluster, one after the other: `ratchet run ... --wait`, and a
script that submits the same chains with submitit, by `--dependency`, and waits for all results. Counted are the
processor time and the peak memory of that process, and what it asked of the controller (`sdiag`).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks import language
from tests.conftest import REPOSITORY
from tests.slurm.alone import Alone
from tests.slurm.harness import Cluster

OUT = Console(highlight=False, soft_wrap=True)
PEER = """
import sys, time
import submitit

folder, cells, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
executor, jobs = submitit.AutoExecutor(folder=folder), []
asked = dict(timeout_min=2, cpus_per_task=1, mem_gb=1, slurm_partition="cpu", name="peer")
for cell in range(cells):
    before = None
    for stage in range(3):
        after = {"dependency": f"afterok:{before.job_id}"} if before else {}
        executor.update_parameters(**asked, slurm_additional_parameters=after)
        before = executor.submit(time.sleep, seconds)
        jobs.append(before)
for job in jobs:
    job.result()
"""


def watched(command: list[str], environment: dict[str, str], cluster: Cluster, said: Path) -> dict[str, float]:
    """Runs a command that waits; its seconds, processor time and memory, and the calls of the controller."""
    cluster.slurm("sdiag", "--reset")
    began, peak = time.monotonic(), 0.0
    before = os.times()
    with said.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        shown = psutil.Process(process.pid)

        def measure() -> None:
            nonlocal peak
            while process.poll() is None:
                try:
                    peak = max(peak, shown.memory_info().rss)
                except psutil.NoSuchProcess:
                    return
                time.sleep(0.2)

        thread = threading.Thread(target=measure)
        thread.start()
        code = process.wait()
        thread.join()
    assert code == 0, said.read_text()[-3000:]
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    asked = re.findall(r"^\s+(REQUEST_\S*(?:JOB_INFO|SUBMIT)\S*)\s.*?count:(\d+)", cluster.slurm("sdiag"), re.MULTILINE)
    return {
        "seconds": time.monotonic() - began,
        "processor time, s": used,
        "memory, MB": peak / 1e6,
        "submissions": sum(int(times) for name, times in asked if "SUBMIT" in name),
        "questions": sum(int(times) for name, times in asked if "INFO" in name),
    }


def main(cells: int, seconds: float, folder: Path) -> None:
    cluster = Cluster()
    try:
        (folder / "home").mkdir()
        alone = Alone(cluster, folder / "alone", folder / "home")
        study = ["benchmarks.cells", f"--set=cells={cells}", f"--set=seconds={seconds}"]
        ours = [sys.executable, "-m", "flows", "run", *study, "--dispatch=slurm", "--wait"]
        theirs = [sys.executable, "-c", PEER, str(folder / "peer"), str(cells), str(seconds)]
        peers = {"PYTHONPATH": str(REPOSITORY / ".venv-peers")}  # their jobs import submitit too
        sides = {
            "ours": watched(ours, alone.environment, cluster, folder / "ours.log"),
            "submitit": watched(theirs, alone.environment | peers, cluster, folder / "peer.log"),
        }
    finally:
        cluster.wipe()
    OUT.print(f"{3 * cells} jobs in {cells} chains (ours: one more, which gathers them), each of {seconds:g} s")
    for what in sides["ours"]:
        OUT.print(f"{what}: ours {sides['ours'][what]:.2f}, submitit {sides['submitit'][what]:.2f}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cells", type=int, default=20)
    options.add_argument("--seconds", type=float, default=1.0)
    given = options.parse_args()
    OUT.print(language.machine())
    with tempfile.TemporaryDirectory() as made:
        main(given.cells, given.seconds, Path(made))
