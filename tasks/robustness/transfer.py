"""transfer: what was found for each model, tried on every model; forwards only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from storage.errors import CheckFailed
from storage.records import read_records
from tasks.attacks.flips import scored_tokens
from tasks.attacks.scoring import Victim
from tasks.attacks.texts import Text, attacked_texts, tokenizer_of, victim
from tasks.robustness.results import SetupResult, TransferResult, UatResult
from tasks.robustness.stages import TransferConfig
from tasks.stage.run import StageInput, StageRun

KEY_COLUMNS = ("attack", "found_for", "model", "example_id")
"""There is one record for each attack, model that it was found for, model that it is tried on, and document."""


def transfer(run: StageRun, config: TransferConfig, text: StageInput, **given: StageInput) -> TransferResult:
    """Judges the trigger and the flips of each model on each model, on the texts and tokens of the attacks, in fp32.

    `given` are the stages of every model `<name>` as `model-<name>`, `uat-<name>` and `hotflip-<name>`. Writes one
    record for each attack, pair of models and document; a continuation loses at most one pair.
    """
    found = [*_triggers(config, text, given), *_flips(config, text, given)]
    settings, end_of_text = config.execution, SetupResult.read(text).end_of_text_id
    keys = []
    with run.watched(settings.stall_minutes):
        for place, model in enumerate(config.models):
            judge = None
            for number, attacked in enumerate(found):
                run.stop.check()
                run.progress.update(place * len(found) + number, len(config.models) * len(found), "attacks", model)
                keys.append(f"{place:03d}-{number:05d}")
                if not run.records.has(keys[-1]):
                    if judge is None:
                        folder = given[f"model-{model}"].path / "model"
                        judge = victim(folder, end_of_text, settings, settings.attack_batch_examples)
                    run.records.write(keys[-1], _rows(model, judge, attacked))
    with run.publish_file("records.parquet") as file:
        digest = run.records.merge(keys, file, KEY_COLUMNS)
    rows = list(read_records(run.directory / "records.parquet"))
    return TransferResult(
        split="attack-evaluation",
        uat=_matrix(rows, "uat", config.models),
        hotflip=_matrix(rows, "hotflip", config.models),
        records_digest=digest,
    )


@dataclass(frozen=True)
class _Found:
    """What an attack found for one model: for each text a prefix and the text's tokens, and which of these count."""

    attack: str
    found_for: str
    texts: list[Text]
    prefix: list[int]
    tokens: list[list[int]]
    scored: list[torch.Tensor]


def _triggers(config: TransferConfig, text: StageInput, given: dict[str, StageInput]) -> Iterator[_Found]:
    texts = attacked_texts(text, tokenizer_of(text), "attack-evaluation", config.uat.text_tokens)
    tokens = [own.tokens for own in texts]
    scored = [scored_tokens(own, []) for own in tokens]
    for model in config.models:
        trigger = UatResult.read(given[f"uat-{model}"]).gradient.trigger_ids
        yield _Found("uat", model, texts, trigger, tokens, scored)


def _flips(config: TransferConfig, text: StageInput, given: dict[str, StageInput]) -> Iterator[_Found]:
    attack = config.hotflip
    texts = attacked_texts(text, tokenizer_of(text), "attack-evaluation", attack.text_tokens, attack.documents)
    columns = ["example_id", "writable", "positions", "replacements"]
    for model in config.models:
        rows = list(read_records(given[f"hotflip-{model}"].path / "records.parquet", columns))
        if [row["example_id"] for row in rows] != [own.example_id for own in texts]:
            raise CheckFailed(
                "flips stand for the documents of attack-evaluation, in their order",
                f"others in the records of hotflip of {model}",
                "the same",
                "Find what changed its records.parquet, and run the stage hotflip again",
            )
        changed = [list(own.tokens) for own in texts]
        for tokens, row in zip(changed, rows, strict=True):
            for position, token in zip(row["positions"], row["replacements"], strict=True):
                tokens[position] = token
        scored = [scored_tokens(own.tokens, row["writable"]) for own, row in zip(texts, rows, strict=True)]
        yield _Found("hotflip", model, texts, [], changed, scored)


def _rows(model: str, judge: Victim, found: _Found) -> list[dict[str, Any]]:
    """The losses of the same tokens of each text, clean and attacked."""
    count = len(found.texts)
    clean = judge.losses([[]] * count, [text.tokens for text in found.texts])
    attacked = judge.losses([found.prefix] * count, found.tokens)
    return [
        {
            "attack": found.attack,
            "found_for": found.found_for,
            "model": model,
            "example_id": text.example_id,
            "source": text.source,
            "text_tokens": len(text.tokens),
            "tokens_scored": int(scored_L.sum()),
            "loss_sum_nats": attacked_L[scored_L].sum().item(),
            "clean_loss_sum_nats": clean_L[scored_L].sum().item(),
            "text_clean_loss_sum_nats": clean_L.sum().item(),
        }
        for text, scored_L, clean_L, attacked_L in zip(found.texts, found.scored, clean, attacked, strict=True)
    ]


def _matrix(rows: list[dict[str, Any]], attack: str, models: list[str]) -> dict[str, dict[str, float]]:
    """Found for -> tried on -> increase of the loss, in nats per scored token."""
    return {
        found_for: {
            tried_on: _increase(
                [r for r in rows if (r["attack"], r["found_for"], r["model"]) == (attack, found_for, tried_on)]
            )
            for tried_on in models
        }
        for found_for in models
    }


def _increase(rows: list[dict[str, Any]]) -> float:
    risen = sum(row["loss_sum_nats"] - row["clean_loss_sum_nats"] for row in rows)
    return risen / sum(row["tokens_scored"] for row in rows)
