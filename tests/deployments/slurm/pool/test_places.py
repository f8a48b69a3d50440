"""How many runs get a job at once, and what the others are told; the real server counts in tests/slurm."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.slurm.cluster.client import Job
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool.places import ASKED_EVERY_SECONDS, TOLD_AT_ONCE, WAITS, Alive, NoAnswer, Places, SubmitLimit
from deployments.slurm.pool.reconcile import Run, SetState
from deployments.slurm.pool.runs import PrefectRuns


class FakeRuns(PrefectRuns):
    def __init__(self, waiting: int = 0) -> None:
        self.runs = [Run(str(number), f"state-{number}", "SCHEDULED", "Scheduled") for number in range(waiting)]
        self.limit: int | None = None
        self.set: list[int | None] = []
        self.is_away = False
        self.told: list[SetState] = []

    def allowed(self) -> int | None:
        if self.is_away:
            raise ConnectionError
        return self.limit

    def allow(self, at_once: int | None) -> None:
        self.limit = at_once
        self.set.append(at_once)

    def waiting(self) -> list[Run]:
        return self.runs

    def set_state(self, wish: SetState) -> bool:
        self.told.append(wish)
        told = Run(wish.run.id, f"told-{wish.run.id}", wish.type, wish.name, wish.message)
        self.runs = [told if run.id == wish.run.id else run for run in self.runs]
        return True


Make = Callable[..., Places]


def keep_and_tell(kept: Places, of: Site, under_way: int) -> None:
    kept.keep(of, Alive())
    kept.tell(under_way)


QOS = SubmitLimit(10, "QOS", "normal")


def jobs(count: int, qos: str = "normal") -> list[Job]:
    return [Job(str(number), f"job-{number}", "RUNNING", qos=qos) for number in range(count)]


@pytest.fixture
def places(tmp_path: Path) -> Make:
    """Of a worker that starts; the file of the one before it is there."""

    def make(runs: FakeRuns, limit: SubmitLimit | None = None) -> Places:
        return Places(runs, tmp_path / "places.json", lambda account, qos: limit, clock=lambda: 0.0)

    return make


def site(**values: object) -> Site:
    return Site.model_validate({"root": "/runs", **values})


def test_the_smaller_of_site_and_slurm_is_set_once_and_other_jobs_of_the_user_are_taken_off(places):
    runs = FakeRuns()
    kept = places(runs, QOS)
    for others in (0, 0, 4, 12):
        kept.keep(site(max_jobs=8), Alive(others=jobs(others)))
    assert runs.set == [8, 6, 0]


def test_a_limit_of_a_person_stands_where_there_is_no_other_and_one_that_is_taken_back_ends(places):
    runs = FakeRuns()
    kept = places(runs)
    kept.keep(site(), Alive())
    assert runs.set == []
    kept.keep(site(max_jobs=2), Alive())
    kept.keep(site(), Alive())
    assert runs.set == [2, None]


def test_a_worker_that_starts_again_takes_back_the_limit_that_was_ratchets_own(places):
    runs = FakeRuns()
    places(runs).keep(site(max_jobs=8), Alive())
    places(runs).keep(site(), Alive())
    places(runs).keep(site(), Alive())
    assert runs.set == [8, None]


def test_a_limit_that_prefect_lost_is_set_again(places):
    """A person cleared it, or the pool was made anew with the server's database."""
    runs = FakeRuns()
    kept = places(runs)
    for _ in range(2):
        kept.keep(site(max_jobs=8), Alive())
        runs.limit = None
    assert runs.set == [8, 8]


def test_a_lower_limit_of_a_person_gives_way_and_the_log_says_so(places, caplog):
    runs = FakeRuns()
    runs.limit = 3
    kept = places(runs)
    for _ in range(2):
        kept.keep(site(max_jobs=8), Alive())
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert runs.limit == 8 and "3, gives way to: at most 8 jobs at once" in told and "max_jobs" in told


def test_a_job_that_is_being_cancelled_has_its_place_until_it_has_ended(places):
    """Prefect does not count it any more; while eight saved and died, eight others would be submitted."""
    runs = FakeRuns()
    kept = places(runs, SubmitLimit(6, "QOS", "normal"))
    kept.keep(site(max_jobs=8), Alive(uncounted=jobs(5)))
    kept.keep(site(max_jobs=4), Alive(uncounted=jobs(5)))
    assert runs.set == [1, 0]


def test_jobs_in_another_qos_take_no_place_off(places):
    """Those of the user for which SLURM has another limit; and the pool's own, for stages with a QOS of theirs."""
    runs = FakeRuns()
    kept = places(runs, SubmitLimit(4, "QOS", "gpu"))
    kept.keep(site(), Alive(others=[*jobs(10), *jobs(1, "gpu")]))
    kept.keep(site(), Alive(counted=[*jobs(2), *jobs(1, "gpu")], others=jobs(10)))
    assert runs.set == [3, 6]


def test_while_the_accounting_is_away_the_last_limit_stands(tmp_path, caplog):
    """Also for a worker that starts meanwhile; SLURM itself goes on to refuse what is too much."""
    now, is_away, runs = [0.0], [False], FakeRuns()

    def of_slurm(account: str, qos: str) -> SubmitLimit | None:
        if is_away[0]:
            raise NoAnswer("Connection refused")
        return QOS

    def a_worker() -> Places:
        return Places(runs, tmp_path / "places.json", of_slurm, clock=lambda: now[0])

    first = a_worker()
    first.keep(site(), Alive())
    is_away[0], now[0] = True, ASKED_EVERY_SECONDS
    for one in (first, a_worker()):
        one.keep(site(), Alive())
        assert runs.limit == 10
    is_away[0], now[0] = False, 2 * ASKED_EVERY_SECONDS
    first.keep(site(), Alive(others=jobs(1)))
    assert runs.set == [10, 9] and "Connection refused" in caplog.text


@pytest.mark.parametrize("kept_file", ["a folder", "torn"])
def test_a_file_that_cannot_be_used_keeps_no_job_from_slurm(places, kept_file, tmp_path, caplog):
    if kept_file == "torn":
        (tmp_path / "places.json").write_text("[")
    else:
        (tmp_path / "places.json" / "x").mkdir(parents=True)
    runs = FakeRuns()
    kept = places(runs)
    kept.keep(site(max_jobs=8), Alive())
    assert kept.are_kept and runs.limit == 8 and "places.json" in caplog.text


@pytest.mark.parametrize("site_file", [{"max_jobs": 2}, {}])
def test_places_are_kept_only_while_prefect_knows_the_limit(places, site_file):
    """A worker takes no run before: it would take all."""
    runs = FakeRuns()
    kept = places(runs)
    assert not kept.are_kept
    kept.keep(site(max_jobs=8), Alive())
    assert kept.are_kept
    runs.is_away = True
    with pytest.raises(ConnectionError):
        kept.keep(site(**site_file), Alive())
    assert not kept.are_kept
    runs.is_away = False
    kept.keep(site(**site_file), Alive())
    assert kept.are_kept and runs.set == [8, site_file.get("max_jobs")]


def test_those_that_wait_are_told_once_and_some_in_each_poll(places):
    runs = FakeRuns(waiting=TOLD_AT_ONCE + 5)
    kept = places(runs)
    keep_and_tell(kept, site(max_jobs=8), 7)
    assert runs.told == [], "there is a place: they only wait for the next poll"
    keep_and_tell(kept, site(max_jobs=8), 8)
    assert [wish.run.id for wish in runs.told] == [str(number) for number in range(TOLD_AT_ONCE)]
    for _ in range(3):
        keep_and_tell(kept, site(max_jobs=8), 8)
    assert len(runs.told) == TOLD_AT_ONCE + 5
    assert {(wish.type, wish.name, wish.message, wish.origin) for wish in runs.told} == {
        ("SCHEDULED", WAITS, "waits for a place: at most 8 jobs at once (max_jobs, site file)", "put off")
    }
    assert {wish.delay_seconds for wish in runs.told} == {0.0}, "without a delay the turn is kept"


def test_another_number_of_other_jobs_tells_nobody_again(places):
    runs = FakeRuns(waiting=1)
    kept = places(runs, QOS)
    for others in (0, 1, 2):
        kept.keep(site(), Alive(others=jobs(others)))
        kept.tell(10)
    (told,) = runs.told
    assert told.message == "waits for a place: at most 10 jobs of yours at once (the QOS normal)"


def test_slurm_is_asked_every_few_minutes_and_when_the_site_names_another_account(tmp_path):
    now, asked = [0.0], []

    def of_slurm(account: str, qos: str) -> None:
        asked.append((account, qos))

    kept = Places(FakeRuns(), tmp_path / "places.json", of_slurm, clock=lambda: now[0])
    for seconds in (0.0, 1.0, ASKED_EVERY_SECONDS):
        now[0] = seconds
        kept.keep(site(), Alive())
    kept.keep(site(resources={"account": "lab", "qos": "long"}), Alive())
    assert asked == [("", ""), ("", ""), ("lab", "long")]


@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_a_number_of_jobs_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="max_jobs"):
        site(max_jobs=value)
