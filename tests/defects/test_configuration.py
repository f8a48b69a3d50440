"""D28 to D32 and settings that did nothing, disagreed, or were replaced in silence."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import ratchet
import tasks
from flows.command.settings import read_study
from storage.errors import BadInput
from tasks.attacks.stages import for_starts, for_trainings
from tasks.language.study import LanguageExecution
from tasks.monotonic.configuration import Constraint
from tasks.robustness.stages import for_aggregate, for_setup
from tasks.robustness.study import Study
from tasks.stage import numerics
from tasks.stage.configuration import Configuration, field_class
from tasks.stage.preflight import preflight
from tests.conftest import ROBUSTNESS
from tests.docs.pages import PAGES
from tests.tasks.tiny import ToyConfig, handles_of, tiny_study, toy_attempt, toy_directory

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
    of_guests = unused(ours)
    assert of_guests <= {*ratchet.__all__}, "what only studies of one's own use is public"
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


def test_d29_a_key_that_no_stage_reads_is_refused(tmp_path):

    with pytest.raises(BadInput, match=r"evaluation\.lambada: unknown key.*valid keys here: bootstrap_resamples"):
        read_study(ROBUSTNESS, "smoke", ["evaluation.lambada=500"], None)


# ------------------------------------------------------------------------------------------------- D30


def test_d30_setup_and_aggregate_that_need_a_gpu(tmp_path, monkeypatch):
    """Setup refused to run without a GPU though it only downloads; aggregate asked for an A100 to merge JSON."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append("asked") or False)

    def ours() -> bool:
        study = tiny_study(tmp_path)
        wanted = study.model_copy(update={"execution": LanguageExecution(device="cuda")})
        preflight(tmp_path, need_bytes=0)
        for config in (for_setup(wanted), for_aggregate(wanted)):
            assert config.execution.device == "cuda" and not config.numerics.torch
            numerics.prepare(config.numerics, config.execution, 0)
        return True

    asked.clear()
    assert ours() is True
    assert asked == []
    torch.set_num_threads(1)


# ------------------------------------------------------------------------------------------- D31, D32


def test_d31_a_documented_fraction_that_the_option_refused():
    study = read_study(ROBUSTNESS, "smoke", ["execution.max_epochs_per_run=0.5"], None)
    assert study.execution.max_epochs_per_run == 0.5
    trainings = [training for arm in study.arms for training in for_trainings(study, arm)]
    assert len(trainings) >= 2  # upstream's baseline had no such option
    assert all(training.execution.max_epochs_per_run == 0.5 for training in trainings)


def test_d32_a_token_that_can_be_read_by_others(tmp_path, monkeypatch):
    """HF_TOKEN stood on the sbatch command line, which scontrol shows to everybody."""
    secret = "hf_" + "s" * 34
    monkeypatch.setenv("HF_TOKEN", secret)

    def ours() -> str:
        assert toy_attempt(tmp_path, ToyConfig()).exit_code == 0
        files = [file for file in toy_directory(tmp_path, ToyConfig()).path.rglob("*") if file.is_file()]
        assert len(files) > 10
        return "".join(file.read_bytes().decode(errors="replace") for file in files)

    assert secret not in ours()
    names = {path[-1] for path, _, _ in leaves(tiny_study(tmp_path))}
    names -= {"margin_nats_per_token"}  # a loss, and no token that opens anything
    assert not {name for name in names if name.endswith("token") or "secret" in name or "password" in name}


# --------------------------------------------------------------------------- defaults and bad values


def test_two_defaults_that_disagree(monkeypatch, tmp_path):
    """The variant was mlp_in in the configuration and mlp_both in the job scripts' environment."""

    def ours(environment: dict[str, str]) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        (variant,) = {start.variant for start in for_starts(tiny_study(tmp_path)).values()}
        return variant

    def has_one_default(variant) -> bool:
        return variant({}) == variant({"MONOTONIC_VARIANT": "mlp_both"}) == variant({"MONOTONIC_VARIANT": "mlp_in"})

    assert has_one_default(ours)
    assert ours({}) == Constraint().variant


def test_the_environment_does_not_change_what_is_computed(monkeypatch, tmp_path):
    study = tiny_study(tmp_path)
    before = {name: handle.run.fingerprint for name, handle in handles_of(tmp_path, study).items()}
    for name in ("EXPERIMENT_SEED", "OVERRIDE_TRAINING_SAMPLES", "OVERRIDE_BATCH_SIZE", "FOUNDATION_MODEL_NAME"):
        monkeypatch.setenv(name, "7")
    again = tiny_study(tmp_path)
    assert again == study
    assert {name: handle.run.fingerprint for name, handle in handles_of(tmp_path, again).items()} == before


@pytest.mark.parametrize("bad", ["seed=forty-two", "seed='42'", "budget.effective_batch_examples=32.5", "seed="])
def test_a_malformed_number_that_silently_became_the_default(bad):

    with pytest.raises(BadInput, match=bad.partition("=")[0]):
        read_study(ROBUSTNESS, "smoke", [bad], None)


def test_a_key_that_is_assigned_twice(tmp_path):
    """USE_FULL_EVAL_SETS was assigned True and then False; the second won and nothing was said."""

    file = tmp_path / "twice.yaml"
    file.write_text((ROBUSTNESS.profiles / "smoke.yaml").read_text() + "\nseed: 7\n")
    with pytest.raises(BadInput, match="seed"):
        read_study(ROBUSTNESS, str(file), [], None)
