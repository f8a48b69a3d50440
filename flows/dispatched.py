"""A study whose stages are SLURM jobs: looked at once, or followed to its end by a flow run."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect.logging import get_run_logger
from prefect.states import State

from deployments.dispatch import Handle
from deployments.slurm import study as slurm_study
from deployments.slurm.dispatch import Advance, Standing
from deployments.slurm.site import read_site
from flows import study_file


def look(module: str, study: Any, root: str = "", person: bool = True) -> Advance:
    """Keeps the study below the root, starts what is ready, and says how each stage stands."""
    site = read_site()
    walk_root = slurm_study.root_of(site, root)
    file = study_file.keep(walk_root, module, study)
    page, _ = study_file.read(file)
    return slurm_study.look(page, study, file, site, walk_root, person)


def follow_in_flow(module: str, study: Any, root: str) -> State[Any]:
    """Follows the study in the present flow run, which may die at any time: started again it attaches."""
    logger = get_run_logger()

    def told(handle: Handle, standing: Standing) -> None:
        logger.info("%s %s: %s. %s", handle.stage.name, handle.run.fingerprint[:12], standing.stand, standing.told)

    return slurm_study.follow(partial(look, module, study, root), told)
