"""How a study is made again: the command, and the file that it names, for a page to show and a reader to keep."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from storage.run_directory import RunDirectory, read
from tasks.findings.dag import Dag
from tasks.findings.document import Folded

WHERE = "device"
"""The one part of the numerics that is not asked for: what another machine has."""


def made_again(run: RunDirectory, dag: Dag) -> list[Folded]:
    """The command, and the whole study as YAML, which is read back as the same one; nothing where no study was kept.

    The file keeps that part of the study's `execution` on which the bytes of results depend, as all runs of `dag` have
    it.
    """
    if not (kept := read(run.study_file)):
        return []
    place, profile, over = kept["page"], kept["study"], kept["over"]
    page = Path(place).name if place.endswith(".py") else place.removeprefix("flows.")  # wherever the file lies
    file = f"{profile['name']}.yaml"
    varied = [f"--over {shlex.quote(f'{key}={listed(values)}')}" for key, values in over.items()]
    command = " ".join(["ratchet", "sweep" if over else "run", shlex.quote(page), "--profile", file, *varied])
    kept = {key: value for key in profile["execution"] if (value := _common(key, dag)) is not None and key != WHERE}
    values = {key: value for key, value in profile.items() if key != "execution"}
    written = yaml.safe_dump(values | ({"execution": kept} if kept else {}), sort_keys=False, allow_unicode=True)
    summary = f"The command that makes it again, and the file that it names ({file})"
    return [Folded(summary, f"# {command}\n{written}", file)]


def _common(key: str, dag: Dag) -> Any:
    """The value of one of the numerics in every run that has it; None where they differ, or none has it."""
    found = {json.dumps(node.numerics[key]) for node in dag.nodes.values() if key in node.numerics}
    return json.loads(found.pop()) if len(found) == 1 else None


def listed(values: Sequence[Any]) -> str:
    """Values as `--over` and `--set` take them: those that are no plain word as JSON, which is YAML too."""
    plain = [value if isinstance(value, str) and _is_word(value) else json.dumps(value) for value in values]
    return ",".join(plain)


def _is_word(value: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w./-]*", value) is not None and isinstance(yaml.safe_load(value), str)
