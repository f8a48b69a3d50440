"""What Prefect knows of the stages of a study, read for many at once: a few requests, however many stages there are."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from deployments.slurm.pool.runs import AT_ONCE


class KnownRuns:
    """Flow runs by id and by the key that they were made with.

    One that had ended when it was read is asked for again: a person may have retried it since.
    """

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._by_id: dict[str, FlowRun] = {}
        self._by_key: dict[str, FlowRun] = {}
        self._asked: set[str] = set()
        """Ids and keys that were asked for."""

    def read(self, ids: Iterable[str], keys: Iterable[str]) -> None:
        """Asks for all of these, two requests for each AT_ONCE."""
        for some in _parts(id_ for id_ in ids if _is_id(id_)):
            self._take(some, FlowRunFilter(id=FlowRunFilterId(any_=[UUID(id_) for id_ in some])))
        for some in _parts(keys):
            self._take(some, FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=some)))

    def of(self, flow_run: str) -> FlowRun | None:
        """The flow run of this id; None where the server has none."""
        found = self._by_id.get(flow_run)
        if found is not None and not is_over(found):
            return found
        if found is None and (flow_run in self._asked or not _is_id(flow_run)):
            return None
        try:
            return self._client.read_flow_run(UUID(flow_run))
        except ObjectNotFound:
            return None

    def made_by_now(self, key: str) -> FlowRun | None:
        """As `made_with`, asked again: somebody may have made it since all were read."""
        self.read([], [key])
        return self._by_key.get(key)

    def made_with(self, key: str) -> FlowRun | None:
        """The flow run that was made with this key; None where there is none yet."""
        if key not in self._asked:
            return self.made_by_now(key)
        found = self._by_key.get(key)
        return self.of(str(found.id)) if found is not None else None

    def _take(self, asked: list[str], of: FlowRunFilter) -> None:
        for run in self._client.read_flow_runs(flow_run_filter=of, limit=AT_ONCE):
            self._by_id[str(run.id)] = run
            if run.idempotency_key:
                self._by_key[run.idempotency_key] = run
        self._asked |= {*asked}


def is_over(run: FlowRun) -> bool:
    """Whether it has ended."""
    return run.state is not None and run.state.is_final()


def _parts(asked: Iterable[str]) -> Iterable[list[str]]:
    wanted = sorted({*asked})
    return [wanted[first : first + AT_ONCE] for first in range(0, len(wanted), AT_ONCE)]


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
