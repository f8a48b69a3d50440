"""How many runs get a job at once, and what the others are told; a real cluster counts in tests/slurm."""

import pytest

from deployments.slurm.cluster.client import Job
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool.places import ASKED_EVERY_SECONDS, WAITS, Alive, NoAnswer, Places, SubmitLimit
from deployments.slurm.pool.reconcile import Run, SetState


class Waiting:
    """Records of runs that wait for a job."""

    def __init__(self, count: int = 0) -> None:
        self.runs = [Run(str(number), f"state-{number}", "SCHEDULED", "Scheduled") for number in range(count)]
        self.told: list[SetState] = []

    def waiting(self) -> list[Run]:
        return self.runs

    def set_state(self, wish: SetState) -> bool:
        self.told.append(wish)
        told = Run(wish.run.id, f"told-{wish.run.id}", wish.type, wish.name, wish.message)
        self.runs = [told if run.id == wish.run.id else run for run in self.runs]
        return True


def places(limit: SubmitLimit | None = None, waiting: Waiting | None = None) -> Places:
    return Places(waiting or Waiting(), lambda account, qos: limit, clock=lambda: 0.0)


def allowed(kept: Places, of: Site, alive: Alive | None = None) -> int | None:
    kept.keep(of, alive or Alive())
    return kept.allowed


QOS = SubmitLimit(10, "QOS", "normal")


def jobs(count: int, qos: str = "normal") -> list[Job]:
    return [Job(str(number), f"job-{number}", "RUNNING", qos=qos) for number in range(count)]


def site(**values: object) -> Site:
    return Site.model_validate({"root": "/runs", **values})


def test_the_smaller_of_site_and_slurm_counts_and_other_jobs_of_the_user_are_taken_off():
    kept = places(QOS)
    found = [allowed(kept, site(max_jobs=8), Alive(others=jobs(others))) for others in (0, 0, 4, 12)]
    assert found == [8, 8, 6, 0] and allowed(places(), site()) is None


def test_a_job_that_is_being_cancelled_has_its_place_until_it_has_ended():
    """While eight saved and died, eight others would be submitted."""
    kept = places(SubmitLimit(6, "QOS", "normal"))
    assert allowed(kept, site(max_jobs=8), Alive(uncounted=jobs(5))) == 1
    assert allowed(kept, site(max_jobs=4), Alive(uncounted=jobs(5))) == 0


def test_jobs_in_another_qos_take_no_place_off():
    """Those of the user for which SLURM has another limit; and the root's own, for stages with a QOS of theirs."""
    kept = places(SubmitLimit(4, "QOS", "gpu"))
    assert allowed(kept, site(), Alive(others=[*jobs(10), *jobs(1, "gpu")])) == 3
    assert allowed(kept, site(), Alive(counted=[*jobs(2), *jobs(1, "gpu")], others=jobs(10))) == 6


def test_while_the_accounting_is_away_the_last_limit_stands(caplog):
    """SLURM itself goes on to refuse what is too much."""
    now, is_away = [0.0], [False]

    def of_slurm(account: str, qos: str) -> SubmitLimit | None:
        if is_away[0]:
            raise NoAnswer("Connection refused")
        return QOS

    kept = Places(Waiting(), of_slurm, clock=lambda: now[0])
    assert allowed(kept, site()) == 10
    is_away[0], now[0] = True, ASKED_EVERY_SECONDS
    assert allowed(kept, site()) == 10
    is_away[0], now[0] = False, 2 * ASKED_EVERY_SECONDS
    assert allowed(kept, site(), Alive(others=jobs(1))) == 9 and "Connection refused" in caplog.text


def test_nothing_may_come_before_slurm_was_asked():
    """Who had just begun to serve took three runs where SLURM takes one job, half a second before it knew that."""
    kept = places(waiting=(waiting := Waiting(1)))
    kept.tell(0)
    assert kept.allowed == 0 and not waiting.told


def test_those_that_wait_are_told_once():
    waiting = Waiting(5)
    kept = places(waiting=waiting)
    for under_way in (7, 8, 8, 8):
        kept.keep(site(max_jobs=8), Alive())
        assert under_way == 8 or not waiting.told, "there is a place: they only wait for the next poll"
        kept.tell(under_way)
    assert [wish.run.id for wish in waiting.told] == [*"01234"]
    assert {(wish.type, wish.name, wish.message, wish.origin) for wish in waiting.told} == {
        ("SCHEDULED", WAITS, "waits for a place: at most 8 jobs at once (max_jobs, site file)", "put off")
    }
    assert {wish.delay_seconds for wish in waiting.told} == {0.0}, "without a delay the turn is kept"


def test_another_number_of_other_jobs_tells_nobody_again():
    waiting = Waiting(1)
    kept = places(QOS, waiting)
    for others in (0, 1, 2):
        kept.keep(site(), Alive(others=jobs(others)))
        kept.tell(10)
    (told,) = waiting.told
    assert told.message == "waits for a place: at most 10 jobs of yours at once (the QOS normal)"


def test_slurm_is_asked_every_few_minutes_and_when_the_site_names_another_account():
    now, asked = [0.0], []

    def of_slurm(account: str, qos: str) -> None:
        asked.append((account, qos))

    kept = Places(Waiting(), of_slurm, clock=lambda: now[0])
    for seconds in (0.0, 1.0, ASKED_EVERY_SECONDS):
        now[0] = seconds
        kept.keep(site(), Alive())
    kept.keep(site(resources={"account": "lab", "qos": "long"}), Alive())
    assert asked == [("", ""), ("", ""), ("lab", "long")]


@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_a_number_of_jobs_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="max_jobs"):
        site(max_jobs=value)
