"""`ratchet card`: the model of a finished training, with a card that the hub's own library reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from flows import command
from storage import durable
from tests.tasks.tiny import ToyConfig, toy_attempt, toy_directory

TOY = ToyConfig()


def carded(capsys: pytest.CaptureFixture[str], *given: object) -> tuple[int, str]:
    code = command.ratchet(["card", *map(str, given)])
    return code, "".join(capsys.readouterr())


def test_a_model_is_copied_with_what_was_measured_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy_attempt(tmp_path, TOY)
    run, folder = toy_directory(tmp_path, TOY), tmp_path / "card"
    code, said = carded(capsys, run.path, folder)
    assert code == 0 and f"hf upload YOU/NAME {folder}" in said
    for file in (run.path / "model").iterdir():
        assert durable.sha256_file(folder / file.name) == durable.sha256_file(file)
    card = ModelCard.load(folder / "README.md")
    (measured,) = card.data.eval_results
    training = json.loads(run.result_file.read_text())
    training = training.get("training") or training
    assert measured.metric_value == training[f"best_{measured.metric_type}"]
    assert run.fingerprint in card.text and all(what in card.text for what in training.get("trivial") or {})
    code, said = carded(capsys, run.path, folder)
    assert code == 2 and "is there already" in said


def test_a_model_that_its_marker_does_not_know_is_not_passed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_attempt(tmp_path, TOY)
    run, folder = toy_directory(tmp_path, TOY), tmp_path / "card"
    weights = next((run.path / "model").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    code, said = carded(capsys, run.path, folder)
    assert code == 2 and "gives no model" in said and not folder.exists()
    run.marker_file.unlink()
    assert "no marker" in carded(capsys, run.path, folder)[1]
