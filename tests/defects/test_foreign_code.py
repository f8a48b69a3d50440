"""A model folder whose code ran when a person, or `yes y |`, answered transformers' question with y."""

import ast
import io
import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from deployments.dag.walk import Handle
from storage.errors import BadInput
from tasks.language import model as language
from tasks.language.configuration import PretrainedDirectory, PretrainedHub
from tasks.language.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from tasks.stage.attempt import attempt
from tests.conftest import REPOSITORY
from tests.tasks.language.test_model import REVISION
from tests.tasks.tiny import handles_of, save_model, sentences, tiny_model, tiny_study

ONE_PLACE = "tasks/language/foreign.py"
LOADS = {"from_pretrained", "from_config", "load_dataset", "load_dataset_builder", "pipeline"}
RUNS_CODE = {"get_class_from_dynamic_module", "load_custom_generate", "register_for_auto_class"}
CODE = "own_code"
AUTO_MAP = {"AutoConfig": f"{CODE}.Config", "AutoModelForCausalLM": f"{CODE}.Model"}


@pytest.fixture
def ran(monkeypatch, tmp_path) -> Path:
    """The file that foreign code would write, and a person, or `yes`, who answers every question with y."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 50))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "foreign code was here"


def model_folder(folder: Path, ran: Path, config: dict | None = None, tokenizer: dict | None = None) -> Path:
    """A whole model with its tokenizer, code that leaves a trace, and what is given in both configurations."""
    save_model(folder, tiny_model(vocabulary=300))
    (folder / "tokenizer.json").unlink()
    save_tokenizer(train_tokenizer(sentences(300), 300), folder)
    lines = [f"open({str(ran)!r}, 'w').close()", "from transformers import GPTNeoXConfig, GPTNeoXForCausalLM"]
    lines += [
        "class Config(GPTNeoXConfig): model_type = 'own'",
        "class Model(GPTNeoXForCausalLM): config_class = Config",
    ]
    (folder / f"{CODE}.py").write_text("\n".join([*lines, "from transformers import GPTNeoXTokenizer as Tokenizer"]))
    for name, changed in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | (changed or {})))
    return folder


def refused(load, ran: Path) -> str:
    with pytest.raises(BadInput, match=r"needs code of its own .* not run here") as caught:
        load()
    assert not ran.exists()
    return str(caught.value)


@pytest.mark.parametrize("tokenizer", [{}, {"auto_map": {"AutoTokenizer": [f"{CODE}.Tokenizer", None]}}])
def test_a_model_folder_with_code_of_its_own_ends_with_2_and_runs_none_of_it(ran, tmp_path, tokenizer):
    folder = model_folder(tmp_path / "own", ran, {"model_type": "own", "auto_map": AUTO_MAP}, tokenizer)
    setup: Handle = handles_of(tmp_path, tiny_study(tmp_path, model={"source": "directory", "path": str(folder)}))[
        "setup"
    ]
    outcome = attempt(setup.stage, setup.config, setup.run, {})
    assert outcome.exit_code == 2 and not ran.exists()
    assert str(folder) in outcome.message and "needs code of its own" in outcome.message
    assert str(folder) in refused(lambda: language.load(folder), ran)


def test_code_is_not_run_for_a_model_class_alone(ran, tmp_path):
    """The configuration is the library's, and of a kind that has no causal model."""
    own = {"model_type": "vit", "auto_map": {"AutoModelForCausalLM": f"{CODE}.Model"}}
    folder = model_folder(tmp_path / "own", ran, own)
    refused(lambda: language.load(folder), ran)


def test_a_known_architecture_is_loaded_by_the_library_s_own_class_and_says_so(ran, tmp_path, caplog):
    folder = model_folder(tmp_path / "own", ran, {"auto_map": AUTO_MAP})
    loaded = language.load(folder)
    assert type(loaded).__module__.startswith("transformers.") and not ran.exists()
    assert "code of its own" in caplog.text and "not run" in caplog.text
    saved = save_model(tmp_path / "saved", loaded)
    assert "auto_map" not in json.loads((saved / "config.json").read_text())


def test_a_known_architecture_with_weights_that_the_library_does_not_know_is_another_model(ran, tmp_path):
    folder = model_folder(tmp_path / "own", ran, {"auto_map": AUTO_MAP})
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"gpt_neox.layers.0.gate.weight": torch.ones(4)}, file, {"format": "pt"})
    refused(lambda: language.load(folder), ran)


@pytest.mark.parametrize("auto_map", [{"AutoTokenizer": [f"{CODE}.Tokenizer", None]}, [f"{CODE}.Tokenizer", None]])
def test_a_tokenizer_with_code_of_its_own_is_refused_even_where_the_library_has_one(ran, tmp_path, auto_map):
    folder = model_folder(tmp_path / "own", ran, tokenizer={"auto_map": auto_map})
    assert str(folder) in refused(lambda: load_tokenizer(PretrainedDirectory(path=str(folder)), [], tmp_path), ran)


def test_a_repository_of_the_hub_with_code_of_its_own_runs_none_of_it(ran, tmp_path):
    made = model_folder(tmp_path / "own", ran, {"model_type": "own", "auto_map": AUTO_MAP})
    repository = tmp_path / "hub" / "models--tiny--own"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    shutil.copytree(made, repository / "snapshots" / REVISION)
    hub = PretrainedHub(model="tiny/own", revision=REVISION)
    for load in (lambda: language.pretrained(hub, tmp_path), lambda: load_tokenizer(hub, [], tmp_path)):
        assert "tiny/own" in refused(load, ran)


class _Trace:
    """What runs code where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self):
        return open, (str(self._file), "w")


def test_weights_that_are_a_pickle_run_nothing(ran, tmp_path):
    folder = model_folder(tmp_path / "own", ran)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _Trace(ran)}, folder / "pytorch_model.bin")
    refused(lambda: language.load(folder), ran)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("holds", ["a pickle", "a model", "a list", "nothing", "text"])
def test_weights_that_are_a_pickle_are_bad_input_that_says_what_to_do(ran, tmp_path, name, holds):
    folder = model_folder(tmp_path / "own", ran)
    (folder / "model.safetensors").unlink()
    if holds in ("a model", "a list"):
        torch.save(tiny_model() if holds == "a model" else [1, 2], folder / name)
    else:
        (folder / name).write_bytes({"a pickle": pickle.dumps(_Trace(ran)), "nothing": b"", "text": b"text"}[holds])
    with pytest.raises(BadInput, match=r"save_pretrained, which writes safetensors") as caught:
        language.load(folder)
    assert str(folder) in str(caught.value) and not ran.exists()


def test_a_data_set_with_a_script_runs_none_of_it(ran, tmp_path, monkeypatch):
    from tasks.language import foreign

    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "corpus.py").write_text(f"open({str(ran)!r}, 'w').close()")
    with pytest.raises(Exception, match="script"):
        list(foreign.rows(str(tmp_path / "corpus"), split="train"))
    assert not ran.exists()


def test_every_call_that_could_run_foreign_code_stands_in_one_place():
    found = {}
    for room in ("storage", "tasks", "deployments", "flows"):
        for file in sorted((REPOSITORY / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                for name in _names(node):
                    if name in LOADS | RUNS_CODE or (name.startswith("Auto") and name[4:5].isupper()):
                        found.setdefault(str(file.relative_to(REPOSITORY)), []).append((name, node))
    assert set(found) == {ONE_PLACE}, {file: [name for name, _ in nodes] for file, nodes in found.items()}
    calls = [node for node in ast.walk(ast.parse((REPOSITORY / ONE_PLACE).read_text())) if isinstance(node, ast.Call)]
    loading = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr in LOADS]
    assert len(loading) == 4
    for call in loading:
        given = {word.arg: word.value for word in call.keywords}
        assert isinstance(given["trust_remote_code"], ast.Constant) and given["trust_remote_code"].value is False


def _names(node: ast.AST) -> list[str]:
    """What a node takes from elsewhere, or calls: imported names, attributes, and bare names."""
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    return [node.id] if isinstance(node, ast.Name) else []
