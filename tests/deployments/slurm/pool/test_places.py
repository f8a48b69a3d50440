"""How many runs get a job at once, and what the others are told; the real server counts in tests/slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.slurm.cluster.limits import SubmitLimit
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool.places import ASKED_EVERY_SECONDS, TOLD_AT_ONCE, WAITS, Places
from deployments.slurm.pool.reconcile import Run, SetState


class FakeRuns:
    def __init__(self, waiting: int = 0) -> None:
        self.runs = [
            Run(str(number), f"state-{number}", "SCHEDULED", "Scheduled", waited_seconds=7.0)
            for number in range(waiting)
        ]
        self.allowed: list[int | None] = []
        self.is_away = False
        self.told: list[SetState] = []

    def allow(self, at_once: int | None) -> None:
        if self.is_away:
            raise ConnectionError
        self.allowed.append(at_once)

    def waiting(self) -> list[Run]:
        return self.runs

    def set_state(self, wish: SetState) -> bool:
        self.told.append(wish)
        told = Run(wish.run.id, f"told-{wish.run.id}", wish.type, wish.name, wish.message)
        self.runs = [told if run.id == wish.run.id else run for run in self.runs]
        return True


Make = Callable[..., Places]


def keep_and_tell(kept: Places, of: Site, under_way: int) -> None:
    kept.keep(of, 0)
    kept.tell(under_way)


@pytest.fixture
def places(tmp_path: Path) -> Make:
    """Of a worker that starts; the file of the one before it is there."""

    def make(runs: FakeRuns, limit: SubmitLimit | None = None) -> Places:
        return Places(runs, tmp_path / "places.json", lambda account, qos: limit, clock=lambda: 0.0)

    return make


def site(**values: object) -> Site:
    return Site.model_validate({"root": "/runs", **values})


def test_the_smaller_of_site_and_slurm_is_set_once_and_other_jobs_of_the_user_are_taken_off(places: Make) -> None:
    runs = FakeRuns()
    kept = places(runs, SubmitLimit(10, "the QOS normal"))
    for others in (0, 0, 4, 12):
        kept.keep(site(max_jobs=8), others)
    assert runs.allowed == [8, 6, 0]


def test_a_limit_of_a_person_stands_where_there_is_no_other_and_one_that_is_taken_back_ends(places: Make) -> None:
    runs = FakeRuns()
    kept = places(runs)
    kept.keep(site(), 3)
    assert runs.allowed == []
    kept.keep(site(max_jobs=2), 3)
    kept.keep(site(), 3)
    assert runs.allowed == [2, None]


def test_a_worker_that_starts_again_takes_back_the_limit_that_was_ratchets_own(places: Make) -> None:
    runs = FakeRuns()
    places(runs).keep(site(max_jobs=8), 0)
    places(runs).keep(site(), 0)
    places(runs).keep(site(), 0)
    assert runs.allowed == [8, None]


def test_a_worker_that_starts_again_sets_its_limit_again_since_a_person_may_have_changed_it(places: Make) -> None:
    runs = FakeRuns()
    places(runs).keep(site(max_jobs=8), 0)
    places(runs).keep(site(max_jobs=8), 0)
    assert runs.allowed == [8, 8]


@pytest.mark.parametrize("site_file", [{"max_jobs": 2}, {}])
def test_places_are_kept_only_while_prefect_knows_the_limit(places: Make, site_file: dict[str, int]) -> None:
    """A worker takes no run before: it would take all."""
    runs = FakeRuns()
    kept = places(runs)
    assert not kept.are_kept
    kept.keep(site(max_jobs=8), 0)
    assert kept.are_kept
    runs.is_away = True
    with pytest.raises(ConnectionError):
        kept.keep(site(**site_file), 0)
    assert not kept.are_kept
    runs.is_away = False
    kept.keep(site(**site_file), 0)
    assert kept.are_kept and runs.allowed == [8, site_file.get("max_jobs")]


def test_those_that_wait_are_told_once_and_some_in_each_poll(places: Make) -> None:
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
    assert {wish.delay_seconds for wish in runs.told} == {-7.0}, "whoever is told keeps the turn"


def test_another_number_of_other_jobs_tells_nobody_again(places: Make) -> None:
    runs = FakeRuns(waiting=1)
    kept = places(runs, SubmitLimit(10, "the QOS normal"))
    for others in (0, 1, 2):
        kept.keep(site(), others)
        kept.tell(10)
    (told,) = runs.told
    assert told.message == "waits for a place: at most 10 jobs of yours at once (the QOS normal)"


def test_slurm_is_asked_every_few_minutes_and_when_the_site_names_another_account(tmp_path: Path) -> None:
    now, asked = [0.0], []

    def of_slurm(account: str, qos: str) -> None:
        asked.append((account, qos))

    kept = Places(FakeRuns(), tmp_path / "places.json", of_slurm, clock=lambda: now[0])
    for seconds in (0.0, 1.0, ASKED_EVERY_SECONDS):
        now[0] = seconds
        kept.keep(site(), 0)
    kept.keep(site(resources={"account": "lab", "qos": "long"}), 0)
    assert asked == [("", ""), ("", ""), ("lab", "long")]


@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_a_number_of_jobs_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="max_jobs"):
        site(max_jobs=value)
