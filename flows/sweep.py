"""The robustness study over several seeds, and what can be said only with several.

Each seed is the study's page with another seed; setup, base and constrain do not depend on it and are run once.

    python -m flows.sweep --profile quick --seeds 42 1337 2024
"""

from __future__ import annotations

from typing import Literal

from prefect import flow
from prefect.states import State

from deployments.local import Local
from deployments.slurm.study import follow as dispatched
from deployments.walk import Dispatcher, Handle
from flows import command, robustness
from storage.errors import BadInput
from tasks.robustness.study import Study, SweepConfig
from tasks.stage.run import Stage

AGGREGATE_SEEDS = Stage("aggregate", SweepConfig, "tasks.robustness.sweep:aggregate_seeds", version=2)


def page(study: Study, stage: Dispatcher) -> Handle:
    """One study for each of `sweep_seeds`, then the table over all."""
    seeds = study.sweep_seeds
    if len(seeds) < 2 or len(set(seeds)) < len(seeds):
        raise BadInput(f"a sweep needs two or more different seeds, not {seeds}: give --seeds 42 1337 ...")
    of_seed = {f"seed_{seed}": robustness.page(study.model_copy(update={"seed": seed}), stage) for seed in seeds}
    return stage(AGGREGATE_SEEDS, SweepConfig(study=study.name, evaluation=study.evaluation), **of_seed)


@flow(
    name="sweep",
    flow_run_name="{study.name}-sweep",
    persist_result=False,
    on_cancellation=[dispatched.stop_cancelled("flows.sweep", Study)],
)
def sweep(study: Study, root: str = "", dispatch: Literal["local", "slurm"] = "local") -> State:
    """Runs the study for each of its `sweep_seeds`; finished stages are not run again.

    Args:
        study: What is studied; `seed` is replaced by each of `sweep_seeds`.
        root: Folder that holds the run directories; empty: `runs`, on SLURM the site's.
        dispatch: Where stages run: in this process, or each as a SLURM job of the pool that the site names.
    """
    if dispatch == "slurm":
        return dispatched.follow_in_flow("flows.sweep", study, root)
    here = Local(root or "runs", study.name, tags=[f"seed-{seed}" for seed in study.sweep_seeds])
    page(study, here)
    return here.final_state()


if __name__ == "__main__":
    raise SystemExit(command.main("flows.sweep"))
