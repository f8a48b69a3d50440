"""Finished stages that nobody ran: what aggregate reads, with numbers made up here, on disk and with real markers.

`contents()` gives every stage's result, records and metrics as plain values to change; `written()` puts them on disk.
A test in test_aggregate.py compares the keys with those of the real stages.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flows import settings
from storage import durable, markers
from storage.locks import acquire
from storage.run_directory import RunDirectory
from tasks.report.publish import Published
from tasks.robustness.aggregate import aggregate
from tasks.robustness.final_results import FinalResults
from tasks.robustness.study import Study
from tasks.stage.run import StageInput
from tasks.statistics.losses import summary
from tests.conftest import ROBUSTNESS
from tests.records import plain_digest
from tests.tasks.tiny import stage_run

ROLES = {
    "text": "setup",
    "base": "base",
    "constrained": "constrain",
    "baseline": "train-baseline",
    "monotonic": "train-monotonic",
    "evaluation": "evaluate",
    "uat": "uat",
    "hotflip": "hotflip",
}
ATTACKED = ("base", "baseline", "monotonic")
CLEAN = {"base": 4.15, "baseline": 4.08, "monotonic": 4.43}
RISE = {"base": 0.42, "baseline": 0.45, "monotonic": 0.31}
TRIGGERS = {
    "base": (" self</td>\x1b[31m|", [315, 60, 47, 116, 92]),
    "baseline": ("\u202enoisrev\n<script>alert(1)</script>", [11, 220, 3071, 7, 9]),
    "monotonic": (" *the* `array` &amp; café", [261, 1022, 63, 1022, 63]),
}
NUMERICS = {
    "device": "cpu",
    "device_model": "CPU with AVX2",
    "cpu_threads": 2,
    "deterministic": True,
    "micro_batch_examples": 16,
    "evaluation_batch_examples": 8,
    "attack_batch_examples": 32,
    "torch": "2.13.0+cpu",
    "transformers": "5.23.0",
}

EXTERNAL = {"text": {"packages": ["numpy==2.4.6", "pandas==3.0.1", "python==3.11.11"]}}

PINNED = (
    "evaluation.bootstrap_resamples=200",  # an interval that costs little
    "budget.epochs=0.2",
    "uat.trigger_tokens=5",
    "uat.text_tokens=64",
    "hotflip.documents=40",
    "hotflip.flips=5",
    "hotflip.text_tokens=64",
    "hotflip.control_draws=5",
    "hotflip.success_relative_increase=0.15",
)
"""What the tests count on, whatever the quick profile says."""


def study(seed: int = 42) -> Study:
    """The quick profile, with PINNED."""
    return settings.read_study(ROBUSTNESS, "quick", list(PINNED), seed)


def contents(configured: Study, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Stage -> {"result", "rows", "metrics"}; what has neither rows nor metrics lacks the key."""
    chance = np.random.default_rng(seed)
    budget = configured.budget.scientific() | {"ema_decay": configured.budget.ema_decay}  # as a training writes it
    test = _test_rows(chance)
    uat, hotflip = _uat_rows(chance, configured), _hotflip_rows(chance, configured)
    names = ["train", "validation", "test", "attack-search", "attack-evaluation"]
    trained = {
        "budget": budget,
        "steps": 128,
        "epochs": 0.2,
        "tokens_trained": 260_096,
        "best_step": 128,
        "best_validation_loss_nats_per_token": 4.1,
        "best_validation_perplexity": 60.0,
        "gradients": [
            {
                "epoch": 0.2,
                "gradient_norm_90_percent_below": 0.9,
                "gradient_norm_max": 1.5,
                "gradient_steps_clipped_share": 0.1,
            }
        ],
        "gradient_advice": "10% of the steps were clipped to 1",
        "validations": [{"step": 128, "validation_loss_nats_per_token": 4.1}],
    }
    constraint = {
        "variant": "mlp_both",
        "layers_checked": 8,
        "layers": [f"gpt_neox.layers.{i}.mlp.{n}" for i in range(4) for n in ("dense_4h_to_h", "dense_h_to_4h")],
        "weights_checked": 524_288,
        "min_weight": 6.55e-08,
        "max_weight": 0.41,
    }
    return {
        "setup": {
            "result": {
                "splits": {
                    name: {"documents": 200, "characters": 150_000, "sources": 34, "digest": f"{i:x}" * 64}
                    for i, name in enumerate(names)
                },
                "largest_shared_shingles": 0.07,
                "duplicates_dropped_documents": 12,
                "contaminated_dropped_documents": 3,
                "vocabulary_tokens": 4096,
                "end_of_text_id": 0,
                "tokenizer_digest": "a" * 64,
                "packed": {},
            }
        },
        "base": {
            "result": {
                "parameters": 1_841_920,
                "architecture": "GPTNeoXForCausalLM",
                "source": "from-scratch",
                "training": trained,
                "trained_check": {
                    "validation_perplexity": {"unigram": 624.0, "untrained": 4132.0, "base": 63.3},
                    "ratio_of_perplexities": {"unigram": 0.1014, "untrained": 0.0153},
                    "required_ratio": {"unigram": 0.5, "untrained": 0.1},
                },
                "weights_digest": "b" * 64,
            },
            "metrics": _metrics(chance, 384, 8.3, 4.15),
        },
        "constrain": {
            "result": {
                "variant": "mlp_both",
                "constraint": constraint,
                "share_of_signs_changed": 0.4996,
                "max_difference_from_absolute_weight": 1e-7,
                "validation_perplexity_before": 63.3,
                "validation_perplexity_after": 709.5,
                "weights_digest": "c" * 64,
            }
        },
        "train-baseline": {
            "result": {"training": copy.deepcopy(trained), "weights_digest": f"{seed + 200:064x}"},
            "metrics": _metrics(chance, 128, 4.2, 4.08),
        },
        "train-monotonic": {
            "result": {
                "training": copy.deepcopy(trained),
                "constraint": constraint,
                "weights_digest": f"{seed + 100:064x}",
            },
            "metrics": _metrics(chance, 128, 6.6, 4.43),
        },
        "evaluate": {
            "result": {
                "split": "test",
                "documents": 60,
                "models": {name: summary(test, name).as_json() for name in dict.fromkeys(row["model"] for row in test)},
                "records_digest": plain_digest(test),
            },
            "rows": test,
        },
        "uat": {
            "result": {
                "split": "attack-evaluation",
                "documents": 60,
                "attack": configured.uat.model_dump(mode="json"),
                "models": {model: _searched(model) for model in ATTACKED},
                "records_digest": plain_digest(uat),
            },
            "rows": uat,
        },
        "hotflip": {
            "result": {
                "split": "attack-evaluation",
                "documents": 40,
                "attack": configured.hotflip.model_dump(mode="json"),
                "models": {model: _spent(hotflip, model) for model in ATTACKED},
                "records_digest": plain_digest(hotflip),
            },
            "rows": hotflip,
        },
    }


def written(folder: Path, stages: dict[str, dict[str, Any]], name: str = "quick") -> dict[str, StageInput]:
    """Role -> finished stage, below `folder`/runs."""
    inputs = {}
    for role, stage in ROLES.items():
        run = RunDirectory(folder / "runs", name, stage, durable.sha256_json(stage))
        run.path.mkdir(parents=True)
        stands, outputs = stages[stage], ["stage.json", "result.json"]
        described = {"stage": stage, "version": 1, "numerics": stands.get("numerics", NUMERICS)}
        durable.write_json(run.stage_file, described | {"external": EXTERNAL if stage == "setup" else {}})
        durable.write_json(run.result_file, stands["result"])
        if "rows" in stands:
            pq.write_table(pa.Table.from_pylist(stands["rows"]), run.path / "records.parquet")
            outputs.append("records.parquet")
        if "metrics" in stands:
            run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in stands["metrics"]))
            outputs.append("metrics.jsonl")
        run.attempts.mkdir()
        durable.write_json(
            run.attempts / "0001.json",
            {
                "source": {"commit": "cbb3150" + "0" * 33, "dirty_digest": None},
                "versions": {"python": "3.11.11", "torch": "2.13.0+cpu"},
            },
        )
        lock = acquire(run.path / "locks")
        inputs[role] = StageInput(run, markers.write(run, outputs, {}, lock).outputs_digest)
        lock.release()
    return inputs


def aggregated(folder: Path, inputs: dict[str, StageInput], configured: Study) -> tuple[Published, Path]:
    """The result of aggregate on these inputs, and the directory that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    run = stage_run(folder)
    run.run = SimpleNamespace(root=next(iter(inputs.values())).run.root)  # runs are named relative to their own root
    return aggregate(run, configured.for_aggregate(), **inputs), run.directory


def typed(numbers: dict[str, Any]) -> FinalResults:
    """`final_results.json` as the tables and sentences take it."""
    return FinalResults.model_validate(numbers)


def changed(stages: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A copy to edit."""
    return copy.deepcopy(stages)


def _metrics(chance: np.random.Generator, steps: int, first: float, last: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(8, steps + 1, 8):
        loss = last + (first - last) * math.exp(-5 * step / steps)
        rows.append({"step": step, "train_loss": loss + chance.normal(0, 0.04), "learning_rate": 1e-3})
        if step % 32 == 0:
            rows.append({"step": step, "validation_loss": loss + 0.05})
    return rows


def _documents(count: int) -> list[tuple[str, str]]:
    return [(f"{i:064x}", f"package/file_{i // 3}.py") for i in range(count)]


def _test_rows(chance: np.random.Generator) -> list[dict[str, Any]]:
    levels = {"unigram": 6.44, "untrained": 8.33, "constrained-untrained": 6.56} | CLEAN
    order = ("unigram", "untrained", "base", "constrained-untrained", "baseline", "monotonic")
    own = {id_: chance.normal(0, 0.4) for id_, _ in _documents(60)}
    return [
        {
            "model": model,
            "example_id": id_,
            "source": source,
            "tokens_scored": 80,
            "loss_sum_nats": 80 * (levels[model] + own[id_] + chance.normal(0, 0.05)),
        }
        for model in order
        for id_, source in _documents(60)
    ]


def _attack_row(
    chance: np.random.Generator, model: str, document: tuple[str, str], tokens: int, draws: int, strength: float
) -> dict[str, Any]:
    id_, source = document
    clean = tokens * (CLEAN[model] + chance.normal(0, 0.3))
    return {
        "model": model,
        "example_id": id_,
        "source": source,
        "tokens_scored": tokens,
        "loss_sum_nats": clean + tokens * strength * RISE[model] * chance.gamma(4, 0.25),
        "clean_loss_sum_nats": clean,
        "text_tokens": tokens,
        "text_clean_loss_sum_nats": clean,
        "control_tokens_scored": draws * tokens,
        "control_loss_sum_nats": draws * (clean + tokens * chance.normal(0.03, 0.05)),
        "control_clean_loss_sum_nats": draws * clean,
    }


def _uat_rows(chance: np.random.Generator, configured: Study) -> list[dict[str, Any]]:
    draws, tokens = configured.uat.control_triggers, configured.uat.text_tokens
    return [
        _attack_row(chance, model, document, tokens, draws, 1.0) for model in ATTACKED for document in _documents(60)
    ]


def _hotflip_rows(chance: np.random.Generator, configured: Study) -> list[dict[str, Any]]:
    attack, rows = configured.hotflip, []
    for model in ATTACKED:
        for document in _documents(40):
            tokens = attack.text_tokens - attack.flips
            row = _attack_row(chance, model, document, tokens, attack.control_draws, 1.5)
            share = attack.success_relative_increase
            whole = {
                "text_tokens": attack.text_tokens,
                "text_clean_loss_sum_nats": row["clean_loss_sum_nats"] / tokens * attack.text_tokens,
            }
            rows.append(
                row
                | whole
                | {
                    "success": row["loss_sum_nats"] > (1 + share) * row["clean_loss_sum_nats"],
                    "control_successes": int(chance.random() < 0.05),
                    "flips": attack.flips,
                    "positions": list(range(attack.flips)),
                    "replacements": [5] * attack.flips,
                    "round_trips": bool(chance.random() < 0.8),
                    "forward_sequences": 111,
                    "backward_sequences": 5,
                }
            )
    return rows


def _searched(model: str) -> dict[str, Any]:
    text, ids = TRIGGERS[model]
    return {
        "trigger_ids": ids,
        "trigger_text": text,
        "trigger_round_trips": model != "baseline",
        "search_loss_clean_nats_per_token": CLEAN[model],
        "search_loss_nats_per_token": CLEAN[model] + 0.6,
        "restarts": [
            {"trigger_ids": ids, "search_loss_nats_per_token": CLEAN[model] + 0.6},
            {"trigger_ids": ids[::-1], "search_loss_nats_per_token": CLEAN[model] + 0.5},
        ],
        "forward_sequences": 7_200,
        "backward_sequences": 240,
    }


def _spent(rows: list[dict[str, Any]], model: str) -> dict[str, int]:
    own = [row for row in rows if row["model"] == model]
    return {
        key: sum(row[key] for row in own) for key in ("forward_sequences", "backward_sequences", "flips", "round_trips")
    }
