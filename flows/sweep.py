"""The robustness study over several seeds, and what can be said only with several.

Each seed is the study's page with another seed; setup, base and constrain do not depend on it and are run once.

    python -m flows.sweep --profile quick --seeds 42 1337 2024
"""

from __future__ import annotations

from deployments.study_flow import study_flow
from deployments.walk import Dispatcher, Handle
from flows import command, robustness
from storage.errors import BadInput
from tasks.robustness.study import Study, SweepConfig
from tasks.stage.run import Stage

PROFILES = "robustness"
"""Whose profiles these are."""

AGGREGATE_SEEDS = Stage("aggregate", SweepConfig, "tasks.robustness.sweep:aggregate_seeds", version=2, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """One study for each of `sweep_seeds`, then the table over all."""
    seeds = study.sweep_seeds
    if len(seeds) < 2 or len(set(seeds)) < len(seeds):
        raise BadInput(f"a sweep needs two or more different seeds, not {seeds}: give --seeds 42 1337 ...")
    of_seed = {}
    for seed in seeds:
        with stage.cell(f"seed {seed}"):
            of_seed[f"seed_{seed}"] = robustness.page(study.model_copy(update={"seed": seed}), stage)
    config = SweepConfig(study=study.name, evaluation=study.evaluation, execution=study.execution)
    return stage(AGGREGATE_SEEDS, config, **of_seed)


sweep = study_flow(page)


if __name__ == "__main__":
    raise SystemExit(command.main("flows.sweep"))
