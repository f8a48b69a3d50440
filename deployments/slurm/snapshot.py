"""The source that a job runs: a copy, named by its content, so that editing the checkout changes no queued job."""

from __future__ import annotations

import hashlib
from pathlib import Path

from storage import attempts, durable

REPOSITORY = Path(__file__).parent.parent.parent
ROOMS = ("flows", "tasks", "deployments", "storage")
KEPT = {".py", ".yaml", ".json", ".html", ".css", ".j2", ".jinja", ".mplstyle", ".md", ".txt"}


def stage_source(folder: Path, repository: Path = REPOSITORY) -> Path:
    """Copies the four rooms to `folder/<digest>` unless they are there; the commit is written beside them.

    Python finds modules in the working directory first, so a job that starts there runs this copy and not the
    installed one.
    """
    files = sorted(
        file
        for room in ROOMS
        for file in (repository / room).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix in KEPT
    )
    contents = [(file.relative_to(repository), file.read_bytes()) for file in files]
    digest = hashlib.sha256()
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    target = folder / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with durable.new_directory(target) as made:
        for name, content in contents:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(content)
        durable.write_json(made / attempts.SOURCE_FILE, attempts.source_version())
    return target
