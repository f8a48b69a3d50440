"""Losses of a study's texts, as its evaluation has them, beside lm-evaluation-harness's of the same models.

make .venv-lm-eval; python -m benchmarks.perplexity --study runs/quick

The harness is installed apart (`.venv-lm-eval`). It reads the folders `model/` as it reads any model of the hub; its
tasks of the hub (LAMBADA, HellaSwag, Winogrande) need a network, these texts need none.
"""

import json
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from benchmarks import language
from storage import durable
from tasks.language.losses import summary
from tests.conftest import REPOSITORY

TASK = {
    "task": "texts",
    "dataset_path": "json",
    "output_type": "loglikelihood_rolling",
    "test_split": "test",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "bits_per_byte"}],
}


def main() -> None:
    options = language.arguments(__doc__.splitlines()[0], study="runs/quick", models=2, device="cpu")
    sys.path.append(str(REPOSITORY / ".venv-lm-eval"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    run = max(Path(options.study).glob("evaluate/*/COMPLETE.json"), key=lambda file: file.stat().st_mtime).parent
    described = durable.read_json(run / "stage.json")["inputs"]
    rows = pq.read_table(run / "records.parquet").to_pylist()
    losses = {name: summary(rows, name) for name in dict.fromkeys(row["model"] for row in rows)}
    places = {role: run.parents[1] / given["stage"] / given["fingerprint"][:12] for role, given in described.items()}
    texts = pq.read_table(places["text"] / "text" / "test.parquet").column("text").to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (Path(folder) / "texts.yaml").write_text(
            yaml.safe_dump({**TASK, "dataset_kwargs": {"data_files": {"test": str(file)}}})
        )
        for name in [name for name in losses if (places.get(name, run) / "model").is_dir()][: options.models]:
            ours = losses[name].loss_nats_per_token * losses[name].tokens_scored
            theirs = lm_eval.simple_evaluate(
                model="hf",
                model_args={"pretrained": str(places[name] / "model"), "dtype": "float32"},
                tasks=["texts"],
                task_manager=TaskManager(include_path=folder),
                device=options.device,
                batch_size=8,
            )
            total = -sum(float(sample["resps"][0][0]) for sample in theirs["samples"]["texts"])
            sys.stdout.write(
                f"{name}: {ours:.4f} nats over {len(texts)} texts / {total:.4f}: {ours / total - 1:+.1e}\n"
            )
    sys.stdout.write(f"{language.machine()}\n")


if __name__ == "__main__":
    main()
