"""What is checked of a study on SLURM before any of its stages is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.cluster.site import Site
from deployments.slurm.study.preflight import _require_known_stages
from deployments.walk import Walk
from storage.errors import BadInput
from tests.slurm import toy
from tests.slurm.harness import toy_study


@pytest.mark.parametrize(
    ("own", "stages", "message"),
    [
        ({"toy-trainig": {}}, {}, r"execution\.resources\.toy-trainig: no stage .*: all, toy-report, toy-training$"),
        ({"uat": {}}, {}, r"execution\.resources\.uat: no stage has this name"),
        ({}, {"train": {}}, r"site file: stages\.train: no stage .* toy-report, toy-training, .*uat$"),
    ],
)
def test_resources_of_a_stage_that_does_not_exist_are_refused(
    own: dict[str, Any], stages: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """They would be given to nobody, and the stage that was meant would run with too little."""
    walk = Walk(tmp_path, "toy")
    toy.page(toy_study(), walk)
    with pytest.raises(BadInput, match=message):
        _require_known_stages(walk, own, Site(root="/shared", stages=stages))
    elsewhere = {"uat": {}, "cpu": {}}  # another study's stage, and what stages of several need
    _require_known_stages(walk, {"all": {}, "toy-report": {}}, Site(root="/shared", stages=elsewhere))
