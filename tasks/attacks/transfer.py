"""transfer: what each search found for each model, tried on every model; forwards only."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from storage.errors import CheckFailed
from storage.records import Rows, read_records
from tasks.attacks.flips import scored_tokens, written_into
from tasks.attacks.results import SEARCHES, UatResult
from tasks.attacks.scoring import Victim, targets
from tasks.attacks.stages import JUDGED, SEARCHED, TransferConfig
from tasks.attacks.strongest import KEY_COLUMNS
from tasks.attacks.texts import attacked_texts, victim
from tasks.language.texts import Text
from tasks.stage.run import StageInput, StageRun

TOGETHER = 8
"""Attacks that are kept in one part: a part costs 20 ms, which is as much as an attack on a small model."""


def transfer(run: StageRun, config: TransferConfig, text: StageInput, **inputs: StageInput) -> dict[str, object]:
    """Judges the triggers and the flips of each model on each model, on the texts and tokens of the attacks, in fp32.

    Triggers are tried on attack-search too, where the strongest for a model may be chosen; those of every restart, each
    a search of its own, which says what another search would find. `inputs` are the stages of every
    model `<name>` as `model-<name>`, `uat-<name>` and `hotflip-<name>`. Writes one record for each attack, pair
    of models and document; a continuation loses at most TOGETHER attacks on one model.
    """
    attacks = [*_triggers(config, text, inputs), *_flips(config, text, inputs)]
    settings = config.execution
    parts = [attacks[first : first + TOGETHER] for first in range(0, len(attacks), TOGETHER)]
    keys: list[str] = []
    with run.watched(settings.stall_minutes):
        for place, (model, folder) in enumerate(config.models.items()):
            path = inputs[f"model-{model}"].path / folder
            rows = _Tries(model, functools.partial(victim, text, path, settings))
            total = len(config.models) * len(parts)
            keys += run.each(parts, rows, "parts", model, f"{place:03d}-{TOGETHER}-", len(keys), total)
    run.merge_records(keys, KEY_COLUMNS)
    return {}


@dataclass(frozen=True)
class _Found:
    """Attack that a search found for one model: for each text its prefix and tokens, and which of these count."""

    attack: str
    split: str
    search: str
    found_for: str
    texts: list[Text]
    prefix: list[int]
    tokens: Sequence[Sequence[int]]
    scored: list[torch.Tensor]


def _triggers(config: TransferConfig, text: StageInput, inputs: dict[str, StageInput]) -> Iterator[_Found]:
    for split in (SEARCHED, JUDGED):
        texts = attacked_texts(text, split, config.uat.text_tokens)
        scored = [scored_tokens(own, []) for own in texts]
        for search in SEARCHES:
            for model in config.models:
                result = getattr(UatResult.read(inputs[f"uat-{model}"]), search)
                for name, trigger in result.named().items():
                    yield _Found(name, split, search, model, texts, trigger, texts, scored)


def _flips(config: TransferConfig, text: StageInput, inputs: dict[str, StageInput]) -> Iterator[_Found]:
    attack = config.hotflip
    texts = attacked_texts(text, JUDGED, attack.text_tokens, attack.documents)
    columns = ["example_id", "writable", "positions", "replacements", "blind_positions", "blind_replacements"]
    for search, prefix in SEARCHES.items():
        for model in config.models:
            rows = list(read_records(inputs[f"hotflip-{model}"].path / "records.parquet", columns))
            if [row["example_id"] for row in rows] != [own.example_id for own in texts]:
                raise CheckFailed(
                    "flips stand for the documents of attack-evaluation, in their order",
                    f"others in the records of hotflip of {model}",
                    "the same",
                    "Find what changed its records.parquet, and run the stage hotflip again",
                )
            changed = [written_into(*both, prefix) for both in zip(texts, rows, strict=True)]
            scored = [scored_tokens(own, row["writable"]) for own, row in zip(texts, rows, strict=True)]
            yield _Found("hotflip", JUDGED, search, model, texts, [], changed, scored)


class _Tries:
    """Tries on one model what was found; it is loaded for the first that was not tried yet."""

    def __init__(self, model: str, load: Callable[[], Victim]) -> None:
        self.model, self.judge = model, functools.cache(load)
        self.clean: dict[tuple[str, str], list[torch.Tensor]] = {}

    def __call__(self, part: Sequence[_Found]) -> Rows:
        """The losses of the same tokens of each text, clean and attacked."""
        return [row for attack in part for row in self._rows(attack)]

    def _rows(self, attack: _Found) -> Rows:
        kind = (attack.attack, attack.split)
        if kind not in self.clean:
            self.clean[kind] = self.judge().losses([[]] * len(attack.texts), attack.texts)
        attacked = self.judge().losses([attack.prefix] * len(attack.texts), attack.tokens)
        losses = zip(attack.texts, attack.scored, self.clean[kind], attacked, strict=True)
        return [
            {
                "attack": attack.attack,
                "split": attack.split,
                "search": attack.search,
                "found_for": attack.found_for,
                "model": self.model,
                "example_id": text.example_id,
                "source": text.source,
                "text_tokens": len(targets(text)),
                "tokens_scored": int(scored_L.sum()),
                "loss_sum_nats": attacked_L[scored_L].sum().item(),
                "clean_loss_sum_nats": clean_L[scored_L].sum().item(),
                "text_clean_loss_sum_nats": clean_L.sum().item(),
            }
            for text, scored_L, clean_L, attacked_L in losses
        ]
