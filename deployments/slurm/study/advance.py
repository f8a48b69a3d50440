"""Starts what is ready as flow runs of the pool `gpu`, each at most once; never waits."""

from __future__ import annotations

from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from deployments.dag.walk import Handle
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.origin import marked
from deployments.slurm.job.variables import Deployments, job_variables, run_name, stage_parameters
from deployments.slurm.study.known_runs import KnownRuns, is_over
from deployments.slurm.study.standings import Stand, Standing, key_of, under_way
from storage import generations
from storage.errors import Held


class Starter:
    """Makes the flow runs of a study's stages (`standings.Start`)."""

    def __init__(self, client: SyncPrefectClient, site: Site, study_file: Path, source: Path) -> None:
        self._client, self._site, self._file, self._source = client, site, study_file, source
        self._deployments = Deployments(client)

    def __call__(self, handle: Handle, runs: KnownRuns, person: bool, again: str) -> Standing:
        """A new flow run of the stage; the one that was made already for this generation, when it was."""
        anew = person and not again
        if again:  # by a key that will be a new one: two who start it at once would make two runs of it
            made = runs.made_by_now(key_of(handle, generations.current(handle.run)["generation"]))
            if made is not None and not is_over(made):
                return under_way(made, None)
        try:
            run = self._begin(handle, person, again)
            while run and run.state is not None and run.state.is_final() and (run.state.is_completed() or anew):
                # the folder was removed since, perhaps more than once
                again = f"started again: its flow run is {run.state.name}, and its folder has no marker"
                run = self._begin(handle, person, again)
        except Held as held:
            return Standing("under way", str(held))
        if run is None:
            return Standing("finished", str(handle.run.path))
        if run.state is not None and run.state.is_final():  # it ended and left nothing on disk
            stand: Stand = "cancelled" if run.state.is_cancelled() else "failed"
            return Standing(stand, f"{run.state.name}: {run.state.message}", str(run.id))
        return Standing("under way", "started", str(run.id))

    def _begin(self, handle: Handle, person: bool, again: str) -> FlowRun | None:
        """The flow run of the stage's generation, raised if it begins again; None when it is finished by now."""
        digests = {role: given.verdict.outputs_digest for role, given in handle.inputs.items()}
        generation = generations.raised_for_dispatch(handle.run, digests, again)
        handle.check_marker()
        return None if handle.finished else self._flow_run_of(handle, person, generation)

    def _flow_run_of(self, handle: Handle, person: bool, generation: int) -> FlowRun:
        """The flow run of a stage in a generation: one, however often this is called."""
        name = handle.stage.name
        key = key_of(handle, generation)
        return self._client.create_flow_run_from_deployment(
            self._deployments.named(handle.stage.deployment).id,
            parameters=stage_parameters(handle, self._file),
            name=run_name(handle),
            tags=[handle.run.study, name, *(f"seed-{seed}" for seed in sorted(handle.seeds))],
            idempotency_key=key,
            state=Scheduled(
                message="started by a person" if person else None,
                state_details=marked("person" if person else "automatic"),
            ),
            job_variables=job_variables(self._site, handle, self._source),
        )
