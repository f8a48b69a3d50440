"""Deployments of `ratchet deploy` and of `prefect.yaml`: made from the pages and their profiles."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.dag.page import Page
from deployments.dag.sources import require_free_names

HEAD = """\
# Made by `ratchet deployments`; a test compares. `ratchet deploy` makes these deployments on a server in seconds, and
# `prefect deploy --all` in minutes.
"""
STUDIES = "ratchet"
"""The pool of studies and of `advance`."""


@dataclass(frozen=True)
class Profile:
    """A study that can be started in Prefect, by the name that its profile has on the command line."""

    page: Page
    name: str
    description: str
    values: dict[str, Any]


def prefect_yaml(profiles: Iterable[Profile], with_stages: bool = True) -> str:
    """The text of `prefect.yaml`; without stages, what is deployed beside those that are deployed already."""
    deployments = [*(shared_deployments() if with_stages else []), *study_deployments(profiles)]
    return (HEAD if with_stages else "") + yaml.dump(
        {"name": "ratchet", "deployments": deployments}, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True
    )


def description_of(profile: Path) -> str:
    """Text of the comment at the head of a profile: what it is, and what it needs."""
    lines: list[str] = []
    for line in profile.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def shared_deployments() -> list[dict[str, Any]]:
    """Deployments every study needs on SLURM."""
    return [_advance()]


def study_deployments(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """Each profile on SLURM, and on the worker's machine, of the same study."""
    forms = [(profile, _of_form(profile.values)) for profile in profiles]
    return [study_deployment(profile, dispatch, form) for profile, form in forms for dispatch in ("slurm", "local")]


def _advance() -> dict[str, Any]:
    return {
        "name": "advance",
        "entrypoint": "flows.advance.advance",
        "description": "Follows started studies whose own flow runs died; a backstop.",
        "tags": ["ratchet"],
        "work_pool": {"name": STUDIES},
        "parameters": {"root": ""},
        "schedules": [{"interval": 600, "active": True}],
    }


def study_deployment(profile: Profile, dispatch: str, form: dict[str, Any] | None = None) -> dict[str, Any]:
    """A profile's deployment as `prefect.yaml` holds it, on SLURM or (`dispatch` local) on the worker's machine.

    `form` is the study that its form shows, which both have.
    """
    page, on_slurm = profile.page, dispatch == "slurm"
    where = "On SLURM, each stage a job." if on_slurm else "On the machine of the worker, one stage after the other."
    environment = {"PYTHONSAFEPATH": "1"}  # after Cancel Prefect runs a script beside its storage.py, not finding ours
    if page.is_own:  # Prefect imports the page by its name, and finds it there, before Python's own modules
        require_free_names(page.file.parent)
        environment["PYTHONPATH"] = str(page.file.parent)
    return {
        "name": profile.name if on_slurm else f"{profile.name}-local",
        "entrypoint": page.entrypoint,
        "description": f"{profile.description} {where} Started again it goes on where it stands.".strip(),
        "tags": ["ratchet", "study", page.name],
        "work_pool": {"name": STUDIES, "job_variables": {"env": environment}},
        "parameters": {"study": form or _of_form(profile.values), "root": "", "dispatch": dispatch},
    }


def _of_form(values: dict[str, Any]) -> dict[str, Any]:
    """Values of a profile that a form shows: the seeds of a sweep belong to the command line."""
    return {key: value for key, value in values.items() if key != "sweep_seeds"}


class _Dumper(yaml.SafeDumper):
    """Lists of plain values on one line; a study that is there already by reference."""

    def generate_anchor(self, node: yaml.Node) -> str:
        self.last_anchor_id: int = self.last_anchor_id + 1
        return f"study-{self.last_anchor_id}"

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        plain = all(not isinstance(item, dict | list) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _Dumper.represent_list)
