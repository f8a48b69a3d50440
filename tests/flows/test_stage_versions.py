"""A stage whose source changed gets a new version, or an entry that says why its results are the same.

`stage_sources.json` lists, for each stage, every source that its version stood for: [version, digest, why]. The
digest is over the syntax trees of the stage's module and of what it imports from `tasks`, without docstrings and
comments. The frame (stage, configuration, progress) is left out: what it passes on is in the fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest

from flows import robustness, sweep
from tasks.stage import Stage
from tests.conftest import REPOSITORY

REGISTRY = Path(__file__).with_name("stage_sources.json")
FRAME = {
    "tasks.stage",
    "tasks.outcome",
    "tasks.study",
    "tasks.configuration",
    "tasks.execution",
    "tasks.progress",
    "tasks.training.budget",
}
STAGES = {
    f"{module.__name__}.{name}": stage
    for module in (robustness, sweep)
    for name, stage in vars(module).items()
    if isinstance(stage, Stage)
}


def source_digest(work: str, repository: Path = REPOSITORY) -> str:
    """sha256 over the sources that the stage `module:function` is made of."""
    waiting, seen = [work.partition(":")[0]], {}
    while waiting:
        module = waiting.pop()
        file = repository / f"{module.replace('.', '/')}.py"
        if module in seen or module in FRAME or not module.startswith("tasks.") or not file.is_file():
            continue
        tree = ast.parse(file.read_text())
        seen[module] = _dump(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest()


def _dump(node: object) -> object:
    """A syntax tree as JSON, without docstrings and empty fields: `ast.dump` differs between Python versions."""
    if isinstance(node, list):
        return [_dump(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    body = fields.get("body")
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        fields["body"] = body[1:]
    return [type(node).__name__, *([name, _dump(value)] for name, value in fields.items() if value not in (None, []))]


@pytest.mark.parametrize("name", STAGES)
def test_a_changed_stage_has_a_new_version_or_says_why_results_are_the_same(name: str) -> None:
    version, digest, _ = json.loads(REGISTRY.read_text())[name][-1]
    now = source_digest(STAGES[name].work)
    assert (version, digest) == (STAGES[name].version, now), (
        f"the source of {name} changed. If its results can differ, raise its version on the page; then add to "
        f'{REGISTRY.name}: [{STAGES[name].version}, "{now}", "<what changed, or why results are the same>"]'
    )


def test_versions_only_grow_and_every_entry_says_why() -> None:
    for entries in json.loads(REGISTRY.read_text()).values():
        versions = [version for version, _, _ in entries]
        assert versions == sorted(versions) and all(why for _, _, why in entries)


def test_a_change_deep_in_what_a_stage_imports_is_seen_and_a_comment_is_not(tmp_path: Path) -> None:
    for file in (REPOSITORY / "tasks").rglob("*.py"):
        copy = tmp_path / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    work = robustness.TRAIN_MONOTONIC.work
    order = tmp_path / "tasks" / "training" / "order.py"
    order.write_text(order.read_text() + "\n# a comment\n")
    assert source_digest(work, tmp_path) == source_digest(work)
    order.write_text(order.read_text().replace("ROUNDS = 6", "ROUNDS = 5"))
    assert source_digest(work, tmp_path) != source_digest(work)
