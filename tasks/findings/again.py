"""The command that makes a study again, and the file that it names, for a page to show and a reader to keep."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import JsonValue

from storage.run_directory import RunDirectory, read
from tasks.findings.dag import Dag
from tasks.findings.document import Folded

WHERE = "device"
"""The one part of the numerics that is not asked for: what another machine has."""


def reproduction(run: RunDirectory, dag: Dag) -> list[Folded]:
    """The command, and the whole study as YAML, which is read back as the same one; nothing where no study was kept.

    The file keeps that part of the study's `execution` on which the bytes of results depend, as all runs of `dag` have
    it.
    """
    if not (study := read(run.study_file)):
        return []
    place, profile, over = study["page"], study["study"], study["over"]
    page = Path(place).name if place.endswith(".py") else place.removeprefix("flows.")  # wherever the file lies
    file = f"{profile['name']}.yaml"
    varied = [f"--over {shlex.quote(f'{key}={as_argument(values)}')}" for key, values in over.items()]
    command = " ".join(["ratchet", "sweep" if over else "run", shlex.quote(page), "--profile", file, *varied])
    numerics = {key: value for key in profile["execution"] if (value := _common(key, dag)) is not None and key != WHERE}
    values = {key: value for key, value in profile.items() if key != "execution"}
    content = yaml.safe_dump(
        values | ({"execution": numerics} if numerics else {}), sort_keys=False, allow_unicode=True
    )
    summary = f"The command that makes it again, and the file that it names ({file})"
    return [Folded(summary, f"# {command}\n{content}", file)]


def _common(key: str, dag: Dag) -> JsonValue:
    """The value of one of the numerics in every run that has it; None where they differ, or none has it."""
    values = {json.dumps(node.numerics[key]) for node in dag.nodes.values() if key in node.numerics}
    return json.loads(values.pop()) if len(values) == 1 else None


def as_argument(values: Sequence[object]) -> str:
    """Values as `--over` and `--set` take them: those that are no plain word as JSON, which is YAML too."""
    return ",".join(value if isinstance(value, str) and _is_word(value) else json.dumps(value) for value in values)


def _is_word(value: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w./-]*", value) is not None and isinstance(yaml.safe_load(value), str)
