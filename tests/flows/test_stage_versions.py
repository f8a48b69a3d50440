"""A module whose source changed says whether results can differ, and the versions of the stages that it is part of.

`sources.json` lists for each module that stages are made of every source that it had: [digest, versions, why], where
versions is what was raised for it ({"flows.robustness.BASE": 3}), or empty where results are the same. The digest is
over the syntax tree without imports, docstrings, comments, and the words of errors, and over a `report.md`. The frame
(attempt, configuration, progress) is left out: what it passes on is in the fingerprint.
"""

import ast
import functools
import hashlib
import importlib
import json
from pathlib import Path

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


def modules_of(work: str, repository: Path = REPOSITORY) -> dict[str, str]:
    """Digest of each module that the stage `module:function` is made of, by its name."""
    waiting, seen, visited = [work.partition(":")[0]], {}, set()
    while waiting:
        module = waiting.pop()
        file = repository / f"{module.replace('.', '/')}.py"
        if module in visited or not module.startswith("tasks.") or not file.is_file():
            continue
        visited.add(module)
        imported, digest = _read(file.read_text())
        waiting += imported
        if not module.startswith(FRAME) and module.rpartition(".")[2] not in CONFIGURATION:
            seen[module] = digest
        if (prose := file.with_suffix(".md")).is_file():
            seen[f"{module}.md"] = hashlib.sha256(prose.read_bytes()).hexdigest()[:16]
    return seen


@functools.cache
def _read(text: str) -> tuple[list[str], str]:
    """What a source imports, perhaps as modules, and its digest."""
    tree = ast.parse(text)
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = [name for node in froms for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names))]
    return names, hashlib.sha256(json.dumps(_dump(tree)).encode()).hexdigest()[:16]


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
def stages_by_module() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, stage in STAGES.items():
        for module in modules_of(stage.work):
            found.setdefault(module, []).append(name)
    return found


@functools.cache
def digests() -> dict[str, str]:
    return {module: digest for stage in STAGES.values() for module, digest in modules_of(stage.work).items()}


def test_a_changed_module_raises_versions_or_says_why_results_are_the_same():
    entries = json.loads(REGISTRY.read_text())
    changed = [module for module, now in sorted(digests().items()) if entries.get(module, [[""]])[-1][0] != now]
    assert not changed, (
        f"the sources of {', '.join(changed)} changed, of which "
        f"{', '.join(sorted({stage for module in changed for stage in stages_by_module()[module]}))} are made. If "
        'results can differ, raise their versions on the page. Then: python -m tests.flows.sources "what changed, or '
        'why results are the same" [flows.<study>.<STAGE>=<new version> ...]'
    )


def test_every_raised_version_stands_on_its_page_and_every_entry_says_why():
    for module, entries in json.loads(REGISTRY.read_text()).items():
        for _, raised, why in entries:
            assert why, module
            for stage, version in raised.items():
                assert STAGES[stage].version >= version, f"{module}: {stage} is to have version {version}"


def test_a_change_deep_in_what_a_stage_imports_is_seen_and_a_comment_or_an_error_s_words_are_not(tmp_path):
    for file in [*(REPOSITORY / "tasks").rglob("*.py"), *(REPOSITORY / "tasks").glob("*/report.md")]:
        copy = tmp_path / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    work = robustness.TRAIN_MONOTONIC.work
    order = tmp_path / "tasks" / "training" / "order.py"
    before = order.read_text()
    order.write_text(before.replace("import hashlib", "import os").replace("there are no", "has no") + "# a comment\n")
    assert modules_of(work, tmp_path) == modules_of(work)
    order.write_text(before.replace("ROUNDS = 6", "ROUNDS = 5"))
    changed = modules_of(work, tmp_path).items() ^ modules_of(work).items()
    assert {module for module, _ in changed} == {"tasks.training.order"}
    (tmp_path / "tasks" / "inversion" / "report.md").write_text("# another\n")
    changed = modules_of(inversion.REPORT.work, tmp_path).items() ^ modules_of(inversion.REPORT.work).items()
    assert "tasks.inversion.report.md" in {module for module, _ in changed}


def test_the_condition_of_an_error_is_part_of_the_source(tmp_path):
    file = tmp_path / "tasks" / "toy.py"
    file.parent.mkdir()
    digests = set()
    for condition in ("a < 1", "a < 2"):
        file.write_text(f"def work(a):\n    if {condition}:\n        raise ValueError('no')\n")
        digests.add(modules_of("tasks.toy:work", tmp_path)["tasks.toy"])
    assert len(digests) == 2
