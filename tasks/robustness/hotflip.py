"""hotflip: in each text of attack-evaluation a few tokens are replaced; only the others are scored."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from storage.records import read_records
from tasks.attacks.configuration import FlipAttack
from tasks.attacks.flips import flip, flips_of, random_flips
from tasks.attacks.scoring import Count, Victim
from tasks.attacks.texts import Text, attacked_texts, tokenizer_of, victim
from tasks.attacks.vocabulary import round_trips, usable_tokens
from tasks.robustness.results import Flips, HotFlipResult, SetupResult
from tasks.robustness.study import KEY_COLUMNS, HotFlipConfig
from tasks.stage.run import StageInput, StageRun


def hotflip(
    run: StageRun,
    config: HotFlipConfig,
    text: StageInput,
    base: StageInput,
    baseline: StageInput,
    monotonic: StageInput,
) -> HotFlipResult:
    """Attacks every text by itself, on every model with the same budget, beside as many random flips as it may make.

    Writes one record for each model and text, each a part of its own: a continuation loses at most one text.
    """
    attack, tokenizer = config.attack, tokenizer_of(text)
    end_of_text = SetupResult.read(text).end_of_text_id
    texts = attacked_texts(text, tokenizer, "attack-evaluation", attack.text_tokens, attack.documents)
    models = {"base": base, "baseline": baseline, "monotonic": monotonic}
    keys = [f"{name}-{number:05d}" for name in models for number in range(len(texts))]
    done = 0
    with run.watched(config.execution.stall_minutes):
        for name, trained in models.items():
            target = usable_V = None
            for number, own in enumerate(texts):
                run.progress.update(done, len(keys), "texts", name)
                run.stop.check()
                key = f"{name}-{number:05d}"
                if not run.records.has(key):
                    if target is None or usable_V is None:
                        target = victim(trained, end_of_text, config.execution, config.execution.attack_batch_examples)
                        usable_V = usable_tokens(tokenizer, len(target.embeddings_VD))
                    run.records.write(key, [_row(name, target, own, usable_V, attack, config.seed, tokenizer)])
                done += 1
    run.progress.update(done, len(keys), "texts")
    with run.publish_file("records.parquet") as file:
        digest = run.records.merge(keys, file, KEY_COLUMNS)
    rows = list(read_records(run.directory / "records.parquet"))
    return HotFlipResult(
        split="attack-evaluation",
        documents=len(texts),
        attack=attack,
        models={name: _flips(rows, name) for name in models},
        records_digest=digest,
    )


def _row(
    name: str,
    target: Victim,
    text: Text,
    usable_V: torch.Tensor,
    attack: FlipAttack,
    seed: int,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, Any]:
    """One text: attacked, and the control with as many random flips as the attack may make."""
    target.count = Count()
    found = flip(target, text.tokens, usable_V, attack)
    spent = target.count
    target.count = Count()
    flips = flips_of(text.tokens, attack)  # not those that were made: every model gets the same control
    control = random_flips(target, text.tokens, usable_V, flips, attack.control_draws, seed)
    return {
        "model": name,
        "example_id": text.example_id,
        "source": text.source,
        "tokens_scored": found.tokens_scored,
        "loss_sum_nats": found.loss_sum_nats,
        "clean_loss_sum_nats": found.clean_loss_sum_nats,
        "text_tokens": len(text.tokens),
        "text_clean_loss_sum_nats": found.text_clean_loss_sum_nats,
        "success": found.succeeded(attack),
        "control_tokens_scored": sum(draw.tokens_scored for draw in control),
        "control_loss_sum_nats": math.fsum(draw.loss_sum_nats for draw in control),
        "control_clean_loss_sum_nats": math.fsum(draw.clean_loss_sum_nats for draw in control),
        "control_successes": sum(draw.succeeded(attack) for draw in control),
        "flips": len(found.positions),
        "positions": found.positions,
        "replacements": [found.tokens[position] for position in found.positions],
        "round_trips": round_trips(tokenizer, found.tokens),
        "forward_sequences": spent.forward_sequences,
        "backward_sequences": spent.backward_sequences,
    }


def _flips(rows: list[dict[str, Any]], name: str) -> Flips:
    """The records of one model, counted."""
    own = [row for row in rows if row["model"] == name]
    return Flips(
        forward_sequences=sum(row["forward_sequences"] for row in own),
        backward_sequences=sum(row["backward_sequences"] for row in own),
        flips=sum(row["flips"] for row in own),
        round_trips=sum(row["round_trips"] for row in own),
    )
