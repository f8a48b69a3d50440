"""`ratchet card`: the model of a finished training, with a card that the hub's own library reads."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from flows import command
from storage import durable, locks, markers
from tests.tasks.tiny import ToyConfig, toy_attempt, toy_directory

TOY = ToyConfig()


def carded(capsys: pytest.CaptureFixture[str], *given: object) -> tuple[int, str]:
    code = command.ratchet(["card", *map(str, given)])
    return code, "".join(capsys.readouterr())


def test_a_model_is_copied_with_what_was_measured_of_it(tmp_path, capsys):
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


def test_a_model_that_its_marker_does_not_know_is_not_passed_on(tmp_path, capsys):
    toy_attempt(tmp_path, TOY)
    run, folder = toy_directory(tmp_path, TOY), tmp_path / "card"
    weights = next((run.path / "model").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    code, said = carded(capsys, run.path, folder)
    assert code == 2 and "gives no model" in said and not folder.exists()
    run.marker_file.unlink()
    assert "no marker" in carded(capsys, run.path, folder)[1]


def test_no_code_no_pickle_and_no_place_of_this_person_is_passed_on(tmp_path, capsys):
    """A guest's `model/` may be a stranger's; a Trainer's folder has a pickle of its arguments, paths included."""
    toy_attempt(tmp_path / "runs", TOY)
    run, folder, home = toy_directory(tmp_path / "runs", TOY), tmp_path / "card", str(Path.home())
    model, lock = run.path / "model", locks.acquire(run.path / "locks")
    config = {"auto_map": {"AutoModel": "modeling_evil.Evil"}, "custom_pipelines": {"x": {"impl": "evil.X"}}}
    config |= {"_name_or_path": f"{home}/models/mine", "inner": [{"auto_map": 1, "kept": f"{home}ly"}], "n": 1}
    durable.write_json(model / "config.json", config)
    for name in ("modeling_evil.py", "training_args.bin", "optimizer.pt", "x.pkl", "custom/code.so", "run.sh"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(f"{home}/secret")
    vocabulary = json.dumps({"model": {"merges": [f"{home}/", "a"]}, "auto_map": 1})
    (model / "tokenizer.json").write_text(vocabulary)
    durable.write_json(run.study_file, {"page": f"{home}/mine.py", "study": {"text": [f"{home}/a.txt"]}, "over": {}})
    markers.write(run, ["model"], {}, lock)
    lock.release()
    code, said = carded(capsys, run.path, folder)
    assert code == 0 and "left out, as code and pickles are not handed on" in said and "modeling_evil.py" in said
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    assert {Path(name).suffix for name in files} == {".json", ".md", ".safetensors"}
    assert durable.read_json(files["config.json"]) == {
        "_name_or_path": "~/models/mine", "inner": [{"kept": f"{home}ly"}], "n": 1,
    }  # fmt: skip
    assert files["tokenizer.json"].read_text() == vocabulary, "its tokens are no places"
    for name in ("README.md", "study.json"):
        assert home not in files[name].read_text() and "~/" in files[name].read_text(), name
