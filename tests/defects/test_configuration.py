"""D28 to D30, and settings that did nothing or disagreed."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import ratchet
import tasks
from tasks.language.stages import LanguageExecution, SetupConfig
from tasks.robustness.stages import AggregateConfig
from tasks.robustness.study import Study
from tasks.stage import numerics
from tasks.stage.configuration import Configuration, field_class
from tests.docs.pages import PAGES
from tests.tasks.tiny import handles_of, tiny_study
from tests.test_architecture import STUDIES

REPOSITORY = Path(tasks.__file__).parent.parent
ROOMS = ("flows", "tasks", "storage", "deployments")


# ------------------------------------------------------------------------------------------- D28, D29


def definitions_and_names(sources: dict[str, str]) -> tuple[set[str], list[str]]:
    """Public top-level functions and classes, and every name that is used anywhere."""
    defined: set[str] = set()
    used: list[str] = []
    for source in sources.values():
        tree = ast.parse(source)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                defined.add(node.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                used.append(node.id)
            elif isinstance(node, ast.Attribute):
                used.append(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.append(node.value.rpartition(":")[2])  # stages name their work as module:function
    return defined, used


def test_d28_parts_that_are_tested_and_used_by_nothing():
    """CheckpointManager and TrainingTimer had 22 tests and full coverage, and no stage used them."""

    def unused(sources: dict[str, str]) -> set[str]:
        defined, used = definitions_and_names(sources)
        return defined - set(used)

    old = {
        "utils.py": "class CheckpointManager:\n    pass\ndef save(x):\n    pass\n",
        "stage.py": "from utils import save\nsave(1)\n",
    }
    ours = {str(file): file.read_text() for room in ROOMS for file in (REPOSITORY / room).rglob("*.py")}
    assert unused(old) == {"CheckpointManager"}
    prose = " ".join(file.read_text() for file in REPOSITORY.glob("tasks/*/report.md"))
    of_guests = unused(ours) - {*re.findall(r"\w+", prose)}
    assert of_guests <= {*ratchet.__all__, *STUDIES}, "what only studies of one's own use is public"
    assert all(any(name in page for page in PAGES.values()) for name in of_guests), "and stands in the docs"


def leaves(config: Configuration, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str, Any]]:
    """(path, class, value) of every field below a configuration."""
    found = []
    for name, field in type(config).model_fields.items():
        value, kind = getattr(config, name), field_class(field)
        if isinstance(value, Configuration):
            found += [
                (where, "execution" if kind == "execution" else inner, leaf)
                for where, inner, leaf in leaves(value, (*path, name))
            ]
        else:
            found.append(((*path, name), kind, value))
    return found


def changed(study: Study, path: tuple[str, ...], value: Any) -> Study:
    """The study with another, valid value at `path`, or the same study where there is no other."""
    others = {
        "variant": ["mlp_in"],
        "precision": ["bf16"],
        "max_ratio_to_unigram": [50.0],
        "max_ratio_to_untrained": [50.0],
        "attention_heads": [4],
        "hidden_size": [32],
        "train_documents": [100],
        "text_column": ["body"],
        "confidence_level": [0.9],
    }
    options = others.get(path[-1], [])
    if isinstance(value, bool):
        options = [not value]
    elif isinstance(value, int) and not options:
        options = [value + 1]
    elif isinstance(value, float) and not options:
        options = [value * 0.5 or 0.5]
    raw = study.model_dump()
    place = raw
    for part in path[:-1]:
        place = place[part]
    if not options:
        return study
    place[path[-1]] = options[0]
    return Study.model_validate(raw)


def test_d29_settings_that_nothing_reads(tmp_path):
    """EVAL_BENCHMARKS listed five, of which one was run; an override of 2,000 documents was inert."""
    study = tiny_study(tmp_path)

    def prints(of: Study) -> dict[str, str]:
        return {name: handle.run.fingerprint for name, handle in handles_of(tmp_path, of).items()}

    before, tried = prints(study), []
    for path, kind, value in leaves(study):
        other = changed(study, path, value)
        if other == study:
            continue
        tried.append(path[-1])
        if kind == "scientific":
            assert prints(other) != before, f"{'.'.join(path)} changes nothing"
        else:
            assert prints(other) == before, f"{'.'.join(path)} is execution and changes a fingerprint"
    assert {"epochs", "learning_rate", "test_documents", "variant", "seed", "bootstrap_resamples"} <= set(tried)
    assert len(tried) > 35


# ------------------------------------------------------------------------------------------------- D30


def test_d30_setup_and_aggregate_that_need_a_gpu(tmp_path, monkeypatch):
    """Setup refused to run without a GPU though it only downloads; aggregate asked for an A100 to merge JSON."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked for a GPU"))
    study = tiny_study(tmp_path).model_copy(update={"execution": LanguageExecution(device="cuda")})
    for config in (SetupConfig.of(study, tokenizer=study.tokenizer), AggregateConfig.of(study)):
        assert config.execution.device == "cuda" and not config.numerics.torch
        numerics.prepare(config.numerics, config.execution, 0)
    torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------- the environment


def test_the_environment_does_not_change_what_is_computed(monkeypatch, tmp_path):
    """The variant was mlp_in in the configuration and mlp_both in the job scripts' environment."""
    study = tiny_study(tmp_path)
    before = {name: handle.run.fingerprint for name, handle in handles_of(tmp_path, study).items()}
    for name in ("EXPERIMENT_SEED", "OVERRIDE_TRAINING_SAMPLES", "OVERRIDE_BATCH_SIZE", "FOUNDATION_MODEL_NAME"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("MONOTONIC_VARIANT", "mlp_in")
    again = tiny_study(tmp_path)
    assert again == study and study.constraint.variant == "mlp_both"
    assert {name: handle.run.fingerprint for name, handle in handles_of(tmp_path, again).items()} == before
