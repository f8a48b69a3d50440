"""`ratchet card`: a finished training's model as a folder for a model hub, with a card made of its run directory."""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from flows.command.show import again
from storage import durable, markers
from storage.errors import BadInput
from storage.inside import copy
from storage.lineage import leaves
from storage.reading import json_value
from storage.rows import rows_of
from storage.run_directory import RunDirectory, read
from tasks.training.unlearned import best_row

MODEL = "model"
MODEL_FILES = f"{MODEL}/"
DATA = re.compile(r".*\.(safetensors|json|txt|model|jinja|gguf|onnx)")
"""Files that are nothing but data: no code, which may be a stranger's, and no pickle, which runs code."""
NAMES_CODE = ("auto_map", "custom_pipelines")
"""Keys of a model's JSON that name a file of code to run."""


def write_card(run: RunDirectory, folder: Path) -> str:
    """Copies the model's data, each file held against its marker, and writes README.md. Returns what to type next.

    Code and pickles are left out and named; in JSON nothing names code, and the home is `~`.

    BadInput where the run is not finished, has no model, or the folder is there.
    """
    if verdict := markers.check_outputs(run).reason:
        raise BadInput(f"{run.path} gives no model: {verdict}")
    outputs = durable.read_json(run.marker_file)["outputs"]
    files = {name: about["sha256"] for name, about in outputs.items() if name.startswith(MODEL_FILES)}
    if not files:
        raise BadInput(f"{run.path} has no {MODEL_FILES}: name the run of a training, as `ratchet list` shows it")
    if folder.exists():
        raise BadInput(f"{folder} is there already: name a new folder")
    left_out = [name.removeprefix(MODEL_FILES) for name in files if not DATA.fullmatch(name)]
    for name, sha256 in files.items():
        if DATA.fullmatch(name):
            copy(run.path / MODEL, name.removeprefix(MODEL_FILES), folder, sha256)
    if run.study_file.exists():
        copy(run.path, run.study_file.name, folder)
    for file in folder.rglob("*.json"):
        _clean(file)
    (folder / "README.md").write_text(_without_home(str(_card(run))), "utf-8")
    left = f"left out, as code and pickles are not handed on: {', '.join(left_out)}; " if left_out else ""
    return f"{left}read {folder / 'README.md'}, add a licence, then: hf upload YOU/NAME {shlex.quote(str(folder))}"


def _clean(file: Path) -> None:
    """Takes out of a JSON file what names code and where this user's home is; any other stays as it is."""
    data = file.read_bytes()
    if file.name != "tokenizer.json" and any(word.encode() in data for word in (*NAMES_CODE, str(Path.home()))):

        def cleaned(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: cleaned(own) for key, own in value.items() if key not in NAMES_CODE}
            if isinstance(value, list):
                return [cleaned(own) for own in value]
            return _without_home(value) if isinstance(value, str) else value

        try:
            durable.write_json(file, cleaned(json_value(data, file)))
        except ValueError as error:
            raise BadInput(str(error)) from None


def _without_home(text: str) -> str:
    return re.sub(rf"{re.escape(str(Path.home()))}(?=/|\s|[\"',;:)]|$)", "~", text)


def _card(run: RunDirectory) -> ModelCard:
    result, about = read(run.result_file), read(run.stage_file)
    training: dict[str, Any] = result.get("training") or _from_rows(run) or result
    name = f"{run.study} {about['configuration'].get('cell') or run.stage}"
    metric, value = next(
        ((key.removeprefix("best_"), value) for key, value in training.items() if key.startswith("best_validation")),
        ("", None),
    )
    task = dict(task_type="other", dataset_type="own", dataset_name="the study's validation examples")
    shown = [EvalResult(**task, metric_type=metric, metric_value=value)] if metric else []  # type: ignore[arg-type]
    library = "transformers" if "architectures" in read(run.path / MODEL / "config.json") else "safetensors"
    trivial = [f"- without learning, {what}: {number:.6g}" for what, number in (training.get("trivial") or {}).items()]
    steps = [f"- of step {training['best_step']} of {training.get('steps', '?')}"] if "best_step" in training else []
    command, *notes = (line.replace(str(run.study_file), run.study_file.name) for line in again(run))
    command = command.partition(" --root ")[0]  # a place of this machine, as the folder of the file is
    settings = yaml.safe_dump(dict(leaves(about["scientific"])), sort_keys=False, allow_unicode=True)
    data = ModelCardData(library_name=library, tags=["ratchet"], model_name=name, eval_results=shown or None)
    lines = [
        f"---\n{data}\n---\n# {name}\n",
        f"One training of the study {run.study}, made by Ratchet: stage {run.stage}, fingerprint {run.fingerprint}.\n",
        *([f"- {metric}: {value:.6g}", *steps, *trivial, ""] if metric else []),
        "One training shows no difference between methods: the study's report judges, over seeds.\n",
        f"Made again, to the same bytes where the numerics are the same:\n\n    {command}\n",
        *(f"({note})\n" for note in notes),
        f"What determines it:\n\n```yaml\n{settings}```\n",
        f"Not said here: what it is not to be used for, and under which licence. {_inputs(about)}",
    ]
    return ModelCard("\n".join(lines))


def _from_rows(run: RunDirectory) -> dict[str, Any]:
    """The best validation of a training that keeps it in its metric rows alone."""
    for row in best_row(run):
        metric = {f"best_{key}": value for key, value in row.items() if key.startswith("validation")}
        return metric | {
            "trivial": row.get("trivial"),
            "best_step": row["step"],
            "steps": rows_of(run.metrics_file)[-1]["step"],
        }
    return {}


def _inputs(about: dict[str, Any]) -> str:
    outside = ", ".join(f"{key} {value}" for key, value in leaves(about.get("external") or {}))
    return f"Inputs from outside, by content: {outside}." if outside else "It read nothing from outside."
