"""The looks of a site: whichever of them is lost, held or refused, another one follows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.cluster.client import Job, NotNow
from deployments.slurm.cluster.partitions import Cluster
from deployments.slurm.cluster.site import Site
from deployments.slurm.study.looks import GUARD_SECONDS, Looks
from flows import look

THIS = "99"


class Slurm:
    """Queues looks, or refuses them."""

    def __init__(self) -> None:
        self.known: dict[str, Job] = {}
        self.texts: dict[str, str] = {}
        self.places = 9

    def submit(self, text: str) -> str:
        if len(self.known) >= self.places:
            raise NotNow("QOSMaxSubmitJobPerUserLimit")
        number = str(len(self.texts) + 1)
        self.texts[number] = text
        reason = "Dependency" if "--dependency" in text else "BeginTime" if "--begin" in text else "Priority"
        self.known[number] = Job(number, self.name, "PENDING", reason)
        return number

    def jobs(self) -> dict[str, Job]:
        return self.known

    def cancel(self, ids: Sequence[str]) -> None:
        for job in ids:
            del self.known[job]

    def waits_for(self) -> list[str]:
        """What each queued look waits for, oldest first."""
        lines = [self.texts[job].splitlines() for job in self.known if job != THIS]
        found = [line for text in lines for line in text if "--begin" in line or "afterany" in line]
        return [line.removeprefix("#SBATCH --").replace('"', "") for line in found]


class Followed:
    """Studies that are followed, as far as a look asks."""

    gathers = False

    def __init__(self, alive: Sequence[str] = ("7", "8"), due: float = float("inf"), serves: bool = True) -> None:
        self.alive, self.due_in_seconds, self.serves, self.left = alive, due, serves, True
        self.when_looked: Any = lambda: None

    def look(self) -> bool:
        self.when_looked()
        return self.left


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setattr("deployments.slurm.study.looks.read_cluster", lambda: Cluster({}))
    made = Slurm()
    made.looks = Looks(Site(root=str(tmp_path)), made)
    made.name = made.looks.name
    made.known[THIS] = Job(THIS, made.name, "RUNNING")
    return made


GUARD = f"begin=now+{GUARD_SECONDS}"


def test_a_look_queues_one_for_the_end_of_any_job_and_a_guard_and_a_later_one_renews_the_first(slurm):
    assert look.look(Followed(), slurm.looks, THIS)
    assert slurm.waits_for() == [GUARD, "dependency=afterany:7?afterany:8"]
    assert look.look(Followed(["8"]), slurm.looks, THIS)
    assert slurm.waits_for() == [GUARD, "dependency=afterany:8"]


def test_what_is_put_off_has_a_look_when_it_is_due(slurm):
    look.look(Followed([], due=61.4), slurm.looks, THIS)
    assert slurm.waits_for() == [GUARD, "begin=now+61"]


def test_a_look_that_is_killed_has_left_a_guard(slurm):
    followed = Followed()
    followed.when_looked = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        look.look(followed, slurm.looks, THIS)
    assert slurm.waits_for() == [GUARD]


@pytest.mark.parametrize("reason", ["JobHeldUser", "Dependency"])
def test_a_look_that_may_wait_for_ever_is_no_guard(slurm, reason):
    slurm.looks.submit()
    slurm.known["1"] = Job("1", slurm.name, "PENDING", reason)
    assert look.look(Followed(), slurm.looks, THIS)
    assert slurm.waits_for() == [GUARD, "dependency=afterany:7?afterany:8"] and "1" not in slurm.known


def test_where_slurm_takes_one_more_the_guard_goes_on_and_where_it_takes_none_the_look_stays(slurm):
    slurm.places = 2
    assert look.look(Followed(), slurm.looks, THIS) and slurm.waits_for() == [GUARD]
    slurm.cancel(["1"])
    slurm.places = 1
    assert not look.look(Followed(), slurm.looks, THIS)


def test_where_another_process_serves_the_guard_stays_and_at_the_end_nothing_does(slurm):
    assert look.look(Followed(serves=False), slurm.looks, THIS) and slurm.waits_for() == [GUARD]
    ended = Followed()
    ended.left = False
    assert look.look(ended, slurm.looks, THIS) and [*slurm.known] == [THIS]


def test_the_first_jobs_of_an_array_are_submitted_by_the_same_look(slurm):
    followed, looked = Followed(), []
    followed.gathers = True
    followed.when_looked = lambda: looked.append(1)
    look.look(followed, slurm.looks, THIS)
    assert len(looked) == 2


def test_a_look_is_small_and_is_given_nothing_of_prefect(slurm, monkeypatch):
    monkeypatch.setenv("RATCHET_SITE", "mine")
    text = slurm.looks.text()
    assert all(part in text for part in ("--cpus-per-task=1", "--mem=1024M", "--time=5", "-u PREFECT_API_URL", "=mine"))


def test_a_look_waits_for_a_site_file_that_somebody_edits(tmp_path, monkeypatch):
    """It ended before it had queued another one, and nobody followed the studies any more."""
    site = tmp_path / "site.yaml"
    site.write_text("half an edit: [")
    monkeypatch.setenv("RATCHET_SITE", str(site))
    monkeypatch.setattr(look.time, "sleep", lambda seconds: site.write_text(f"root: {tmp_path}\n"))
    assert look._site().root == str(tmp_path)
