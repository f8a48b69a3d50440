"""What `ratchet doctor` says of what a test's cluster does not have: a disk that hosts share, a clock that is wrong."""

import time
from pathlib import Path

import psutil
import pytest

from deployments.slurm.cluster.site import Resources
from deployments.slurm.study.doctor import _database, _judged, _Sent

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export/home /home nfs4 rw,vers=4.2 0 0
scratch@tcp:/fs /lustre lustre rw 0 0
/dev/nvme0n1 /lustre/own xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("place", "kind"), [("/home/me/.prefect", "nfs4"), ("/lustre/p", "lustre"), ("/lustre/own/p", ""), ("/var/tmp", "")]
)
def test_a_database_on_a_disk_that_hosts_share_is_told(tmp_path, monkeypatch, place, kind):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    found = _database(Path(place, "prefect.db"))
    assert found.good == (not kind) and (
        found.good or f"is on {kind}, which hosts share: set PREFECT_HOME" in found.text
    )


@pytest.mark.parametrize(("seconds", "good"), [(-100, False), (0, True), (100, False)])
def test_a_node_s_clock_that_differs_is_told(tmp_path, seconds, good):
    sent = _Sent(["training"], Resources(), "7", time.time(), tmp_path / "0.json")
    shares, clock, torch = _judged(
        "n", sent, {"time": time.time() + seconds, "host": "n1", "python": "3", "torch": "t"}
    )
    assert shares.good and torch.good and clock.good == good
    assert good or "its clock differs from this host's by 100 s or more" in clock.text
