"""What a stage was asked for, as the report reads it: the scientific fields that its run directory is named by."""

from __future__ import annotations

from typing import TypeVar

from storage import durable
from storage.errors import require_equal
from storage.run_directory import fingerprint
from tasks.stage.run import StageInput
from tasks.stage.study import StageConfiguration

Asked = TypeVar("Asked", bound=StageConfiguration)


def asked(given: StageInput, kind: type[Asked]) -> Asked:
    """The configuration in its `stage.json`. CheckFailed where the fingerprint of the stage is that of another one."""
    described = durable.read_json(given.run.stage_file)
    config = kind.model_validate(described["configuration"])
    inputs = {role: one["fingerprint"] for role, one in described["inputs"].items()}
    fields = (described["stage"], described["version"], config.scientific(), described["external"], inputs)
    check = f"the configuration in {given.run.stage_file} is the one that the stage was given"
    require_equal(check, f"fingerprint {fingerprint(*fields)}", f"fingerprint {given.run.fingerprint}")
    return config
