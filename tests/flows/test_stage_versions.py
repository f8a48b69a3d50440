"""A stage whose source changed has another version on its page, or somebody says why its results are the same.

`sources.json` has a line for each stage: [digest, version, why]. The digest is over all that its function reaches by
name (functions, classes, constants, whatever a module does when it is imported, a `report.md`): syntax trees without
imports, docstrings, comments, and the words of errors. The frame (attempt, configuration, progress) is left out: what
it passes on is in the fingerprint.
"""

import ast
import functools
import hashlib
import importlib
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from deployments.dag import sweep
from deployments.dag.sources import page_names
from flows import inversion, robustness
from tasks.stage.run import Stage
from tests.conftest import REPOSITORY

REGISTRY = Path(__file__).with_name("sources.json")
FRAME = ("tasks.stage.", "tasks.training.budget")
CONFIGURATION = ("configuration", "study")
"""Last names of modules that hold only what is in the fingerprint."""
STAGES = {
    f"{module.__name__}.{name}": stage
    for module in (importlib.import_module(f"flows.{name}") for name in page_names())
    for name, stage in vars(module).items()
    if isinstance(stage, Stage)
} | {"deployments.dag.sweep.SWEEP": sweep.SWEEP}


class Source(NamedTuple):
    """A module: what it defines and imports by name; `""` is defined by all else that it does."""

    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, tuple[str, str]]


def reached(work: str, repository: Path = REPOSITORY) -> dict[str, str]:
    """Digest of each definition that the stage `module:function` is made of, by `module:name`."""
    waiting, seen = [tuple(work.split(":"))], {}
    while waiting:
        module, name = waiting.pop()
        file = repository / f"{module.replace('.', '/')}.py"
        if f"{module}:{name}" in seen or module.startswith(FRAME) or module.rpartition(".")[2] in CONFIGURATION:
            continue
        if not module.startswith("tasks.") or not file.is_file():
            continue
        digest, further = _definition(file.read_text(), module, name, repository)
        waiting += further
        if digest:
            seen[f"{module}:{name}"] = digest
            if (prose := file.with_suffix(".md")).is_file():
                seen[f"{module}.md"] = _digest(prose.read_text())
    return seen


@functools.cache
def _definition(text: str, module: str, name: str, repository: Path) -> tuple[str, list[tuple[str, str]]]:
    """Digest of a definition, and (module, name) of all that it names; of a name that is imported, no digest."""
    source = _read(text)
    if name not in source.definitions:
        return "", [source.imports[name]] if name in source.imports else []
    further = [named for node in source.definitions[name] for named in _named(node, module, source, repository)]
    if not name:  # also what it imports does something
        further += [(place, "") for above, each in source.imports.values() for place in (above, f"{above}.{each}")]
    return _digest(json.dumps(_dump(source.definitions[name]))), [*further, (module, "")]


def _named(node: ast.stmt, module: str, source: Source, repository: Path) -> list[tuple[str, str]]:
    """(module, name) of all that a definition names; of a module that is handed on as a whole, all that it defines."""
    imports = source.imports | _imports(ast.walk(node))
    bases = {id(part.value): part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    names = []
    for part in ast.walk(node):
        if not isinstance(part, ast.Name):
            continue
        if part.id not in imports:
            names.append((module, part.id))
            continue
        above, name = imports[part.id]
        whole = f"{above}.{name}".strip(".")
        file = repository / f"{whole.replace('.', '/')}.py"
        if not file.is_file():
            names.append((above, name))
        elif id(part) in bases:
            names.append((whole, bases[id(part)]))
        else:
            names += [(whole, each) for each in _read(file.read_text()).definitions]
    return names


@functools.cache
def _read(text: str) -> Source:
    definitions: dict[str, list[ast.stmt]] = {"": []}
    tree = ast.parse(text)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        parts = [part for target in targets for part in getattr(target, "elts", [target])]
        names = [part.id for part in parts if isinstance(part, ast.Name)]  # what sets an item is something done
        for name in [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else names or [""]:
            if not isinstance(node, ast.Import | ast.ImportFrom) and not _is_text(node):
                definitions.setdefault(name, []).append(node)
    return Source(definitions, _imports(tree.body))


def _imports(nodes) -> dict[str, tuple[str, str]]:
    found = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {name.asname or name.name: (node.module, name.name) for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.asname: (name.name, "") for name in node.names if name.asname}
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _dump(node: object) -> object:
    """A syntax tree as JSON, without what changes no result: `ast.dump` differs between Python versions."""
    if isinstance(node, list):
        return [_dump(item) for item in node if not isinstance(item, ast.Import | ast.ImportFrom)]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    body = fields.get("body")
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        fields["body"] = body[1:]
    if isinstance(node, ast.Raise):
        return ["Raise", [part.id for part in ast.walk(node) if isinstance(part, ast.Name)][:1]]
    return [type(node).__name__, *([name, _dump(value)] for name, value in fields.items() if value not in (None, []))]


@functools.cache
def digests() -> dict[str, str]:
    return {name: _digest(json.dumps(sorted(reached(stage.work).items()))) for name, stage in STAGES.items()}


@pytest.mark.parametrize("name", STAGES)
def test_a_changed_stage_has_another_version_or_a_reason_why_its_results_are_the_same(name):
    known, version, why = json.loads(REGISTRY.read_text())[name]
    assert (known, version) == (digests()[name], STAGES[name].version) and why, (
        f"the source of {name} or its version changed. If results can differ, raise its version on the page. Then: "
        'python -m tests.flows.sources "what changed, or why results are the same"'
    )


def changes(work: str, repository: Path) -> set[str]:
    return {name for name, _ in reached(work, repository).items() ^ reached(work).items()}


def test_a_change_deep_in_what_a_stage_reaches_is_seen_and_a_comment_or_an_error_s_words_are_not(tmp_path):
    for file in [*(REPOSITORY / "tasks").rglob("*.py"), *(REPOSITORY / "tasks").glob("*/report.md")]:
        copy = tmp_path / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    train, order = robustness.TRAIN_MONOTONIC.work, tmp_path / "tasks" / "training" / "order.py"
    before = order.read_text()
    order.write_text(before.replace("import hashlib", "import os").replace("there are no", "has no") + "# a comment\n")
    assert not changes(train, tmp_path)
    order.write_text(before.replace("ROUNDS = 6", "ROUNDS = 5"))
    assert changes(train, tmp_path) == {"tasks.training.order:ROUNDS"}
    order.write_text(before.replace("if count < 1:", "if count < 2:"))
    assert changes(train, tmp_path) == {"tasks.training.order:example_at"}, "the condition of an error"
    order.write_text(before + "\n\ndef unused():\n    return 1\n")
    assert not changes(train, tmp_path), "nothing that the stage reaches"
    order.write_text(before + "\nnp.seterr(all='ignore')\n")
    assert changes(train, tmp_path) == {"tasks.training.order:"}, "what an import does"
    (tmp_path / "tasks" / "inversion" / "report.md").write_text("# another\n")
    assert changes(inversion.REPORT.work, tmp_path) >= {"tasks.inversion.report.md"}


def test_every_stage_reaches_its_mathematics():
    """Names that lead nowhere would be a digest of nothing."""
    wanted = {
        robustness.UAT: "tasks.attacks.trigger:TriggerSearch",
        robustness.TRAIN_MONOTONIC: "tasks.monotonic.constraint:project",
        robustness.AGGREGATE: "tasks.findings.statistics.permutation:exchange_p_value",
        inversion.TRAIN: "tasks.inversion.diffusion:descend",
        inversion.AUDIT: "tasks.inversion.audit:_inverses",
        robustness.EVALUATE: "tasks.language.model:MonotoneParts",
    }
    assert not [name for stage, name in wanted.items() if name not in reached(stage.work)]
    assert min(len(reached(stage.work)) for stage in STAGES.values()) > 15
