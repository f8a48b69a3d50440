"""uat: for each model the universal trigger that a gradient search finds, judged on texts that it has not seen."""

from __future__ import annotations

import time
from typing import Any

import torch

from tasks.attacks.scoring import Victim
from tasks.attacks.texts import Text, attacked_texts, tokenizer_of, victim
from tasks.attacks.trigger import TriggerSearch, control_triggers, mean_loss
from tasks.attacks.vocabulary import round_trips, text_of, usable_tokens
from tasks.robustness.results import Restart, SetupResult, Trigger, UatResult
from tasks.robustness.study import KEY_COLUMNS, UatConfig
from tasks.stage.execution import Execution
from tasks.stage.run import StageInput, StageRun

DOCUMENTS_IN_A_PART = 16


def uat(
    run: StageRun, config: UatConfig, text: StageInput, base: StageInput, baseline: StageInput, monotonic: StageInput
) -> UatResult:
    """Learns a trigger on attack-search and judges it on attack-evaluation, beside random ones of the same length.

    Writes one record for each model and document. The same budget for every model, counted. A continuation goes on
    within a restart.
    """
    attack, tokenizer = config.attack, tokenizer_of(text)
    search_texts = [t.tokens for t in attacked_texts(text, tokenizer, "attack-search", attack.text_tokens)]
    judged = attacked_texts(text, tokenizer, "attack-evaluation", attack.text_tokens)
    models = {"base": base, "baseline": baseline, "monotonic": monotonic}
    ledger = _Ledger(run, config.execution, len(models) * attack.restarts * attack.iterations)

    end_of_text = SetupResult.read(text).end_of_text_id
    found, keys = {}, []
    with run.watched(config.execution.stall_minutes):
        for name, trained in models.items():
            target = victim(trained, end_of_text, config.execution, config.execution.attack_batch_examples)
            usable_V = usable_tokens(tokenizer, len(target.embeddings_VD))
            search = TriggerSearch(target, search_texts, usable_V, attack, config.seed, ledger.searches.get(name))
            ledger.follow(name, search)
            best = Restart.model_validate(search.best())
            found[name] = Trigger(
                trigger_ids=best.trigger_ids,
                trigger_text=text_of(tokenizer, best.trigger_ids),
                trigger_round_trips=round_trips(tokenizer, best.trigger_ids),
                search_loss_clean_nats_per_token=mean_loss(target, [], search_texts),
                search_loss_nats_per_token=best.search_loss_nats_per_token,
                restarts=[Restart.model_validate(restart) for restart in search.state["restarts"]],
                **search.state["count"],
            )
            controls = control_triggers(usable_V, attack, config.seed)
            keys += _judge(run, name, target, judged, best.trigger_ids, controls)
            del target, search  # or the next model would be loaded beside this one
    with run.publish_file("records.parquet") as file:
        digest = run.records.merge(keys, file, KEY_COLUMNS)
    return UatResult(
        split="attack-evaluation", documents=len(judged), attack=attack, models=found, records_digest=digest
    )


class _Ledger:
    """The state of every model's search, saved at iterations so that a continuation loses little."""

    def __init__(self, run: StageRun, settings: Execution, total: int) -> None:
        self.run, self.settings, self.total = run, settings, total
        saved = run.checkpoints.newest_verified()
        self.searches: dict[str, Any] = saved.state["searches"] if saved else {}
        self.done = saved.step if saved else 0
        self.saved_at = time.monotonic()

    def follow(self, name: str, search: TriggerSearch) -> None:
        """Runs `search` to its end."""
        while not search.finished:
            restart = len(search.state["restarts"]) + 1
            self.run.progress.update(self.done, self.total, "iterations", f"{name}, restart {restart}")
            search.step()
            self.done += 1
            self.searches[name] = search.state
            if self._due() or search.finished or self.run.stop.requested:
                self.save()
            self.run.stop.check()
        self.run.progress.update(self.done, self.total, "iterations", f"{name}, judging")

    def save(self) -> None:
        self.run.checkpoints.save(self.done, {}, {"searches": self.searches})
        self.run.checkpoints.prune(self.settings.keep_checkpoints)
        self.saved_at = time.monotonic()

    def _due(self) -> bool:
        every = self.settings.checkpoint_every_steps
        by_step = every is not None and self.done % every == 0
        return by_step or time.monotonic() - self.saved_at >= self.settings.checkpoint_every_seconds


def _judge(
    run: StageRun, name: str, target: Victim, texts: list[Text], trigger: list[int], controls: list[list[int]]
) -> list[str]:
    """Writes the parts of one model that are not there yet; returns the keys of all of its parts."""
    parts = [texts[i : i + DOCUMENTS_IN_A_PART] for i in range(0, len(texts), DOCUMENTS_IN_A_PART)]
    keys = [f"{name}-{number:05d}" for number in range(len(parts))]
    for key, part in zip(keys, parts, strict=True):
        run.stop.check()
        run.progress.touch()
        if not run.records.has(key):
            run.records.write(key, _rows(name, target, part, trigger, controls))
    return keys


def _rows(
    name: str, target: Victim, texts: list[Text], trigger: list[int], controls: list[list[int]]
) -> list[dict[str, Any]]:
    """Clean, attacked and control losses of the texts' own tokens: the same tokens in all three."""
    tokens = [text.tokens for text in texts]

    def sums(prefix: list[int]) -> torch.Tensor:
        return torch.stack([loss.sum() for loss in target.losses([prefix] * len(tokens), tokens)])

    clean, attacked = sums([]), sums(trigger)
    control = torch.stack([sums(random) for random in controls]).sum(0)
    return [
        {
            "model": name,
            "example_id": text.example_id,
            "source": text.source,
            "tokens_scored": len(text.tokens),
            "loss_sum_nats": attacked[row].item(),
            "clean_loss_sum_nats": clean[row].item(),
            "text_tokens": len(text.tokens),
            "text_clean_loss_sum_nats": clean[row].item(),
            "control_tokens_scored": len(controls) * len(text.tokens),
            "control_loss_sum_nats": control[row].item(),
            "control_clean_loss_sum_nats": len(controls) * clean[row].item(),
        }
        for row, text in enumerate(texts)
    ]
