"""A study as a file beside its runs: what jobs and `advance` read, whoever started it and wherever from.

`<root>/<study>/studies/<name>.yaml` holds the module of the page and the complete configuration, so a later change of
a profile changes no study that was started.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from flows import settings
from storage import durable
from storage.errors import BadInput

FOLDER = "studies"
STOPPED = ".stopped"


def keep(root: Path, module: str, study: Any) -> Path:
    """Writes the study below `root`; the same study always has the same file. Starting it again makes it active."""
    file = path(root, module, study)
    stopped(file).unlink(missing_ok=True)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write_bytes(file, yaml.safe_dump(_values(module, study), sort_keys=False).encode())
    return file


def path(root: Path, module: str, study: Any) -> Path:
    """Where `keep` writes the study."""
    digest = durable.sha256_json(_values(module, study))[:8]
    return root / study.name / FOLDER / f"{module.rpartition('.')[2]}-s{study.seed}-{digest}.yaml"


def _values(module: str, study: Any) -> dict[str, Any]:
    return {"page": module, "study": study.model_dump(mode="json")}


def read(file: Path) -> tuple[ModuleType, Any]:
    """The module of the page, and the typed study. BadInput when the file is not one that `keep` wrote."""
    try:
        values = yaml.safe_load(file.read_text())
        module, configuration = str(values["page"]), values["study"]
    except FileNotFoundError:
        raise BadInput(f"there is no study file {file}") from None
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise BadInput(f"{file} is not a study file ({error}): start the study again, which writes it") from None
    try:
        page = importlib.import_module(module)
        model, _ = page.Study, page.page
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{file} names {module!r}, which is not the page of a study: {error}") from None
    return page, settings.validated(model, configuration, str(file))


def active(root: Path) -> list[Path]:
    """The studies below `root` that were started and not stopped, oldest first."""
    found = [file for file in root.glob(f"*/{FOLDER}/*.yaml") if not stopped(file).exists()]
    return sorted(found, key=lambda file: file.stat().st_mtime)


def stopped(file: Path) -> Path:
    """Where it stands that a person stopped the study: nothing is started by itself then."""
    return file.with_suffix(STOPPED)
