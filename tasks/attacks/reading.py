"""What a report reads of the attacks: what every search came to, and its records, checked against each other and the
text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from storage.records import Rows, read_records
from tasks.attacks.checks import require_attacks, require_transfer
from tasks.attacks.configuration import BACKWARD_FORWARDS, FlipAttack, TriggerAttack
from tasks.attacks.results import SEARCHES, Cost, Trigger, UatResult
from tasks.attacks.stages import JUDGED, SEARCHED
from tasks.attacks.strongest import Tried, increases_of
from tasks.findings.gates import Gate, same
from tasks.language.texts import texts_of, tokenizer_of
from tasks.language.tokenizer import text_of
from tasks.stage.run import StageInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Searched:
    """Cost of the searches on one model, and the triggers of both, by search, where one trigger attacks all texts."""

    attack: TriggerAttack | FlipAttack
    cost: Cost
    triggers: dict[str, Trigger] = field(default_factory=dict)

    @classmethod
    def of_triggers(cls, result: UatResult, attack: TriggerAttack, tokenizer: PreTrainedTokenizerBase) -> Self:
        ids = {search: getattr(result, search).best.trigger_ids for search in SEARCHES}
        triggers = {
            search: Trigger(trigger_ids=own, trigger_text=text_of(tokenizer, own)) for search, own in ids.items()
        }
        return cls(attack, result.cost, triggers)

    @classmethod
    def of_flips(cls, rows: Rows, attack: FlipAttack) -> Self:
        return cls(attack, Cost(**{name: sum(row[name] for row in rows) for name in Cost.model_fields}))


@dataclass(frozen=True)
class ReadAttacks:
    """Attack -> model -> what was searched; attack -> everything that was found, tried on every model.

    `strongest`: attack -> model -> its records under the strongest of all that was found.
    """

    searched: dict[str, dict[str, Searched]]
    tried: dict[str, Tried]
    strongest: dict[str, dict[str, Rows]]
    gates: list[Gate]

    @classmethod
    def of(
        cls, stages: Mapping[str, StageInput], models: Sequence[str], uat: TriggerAttack, hotflip: FlipAttack
    ) -> Self:
        """`stages` hold `text`, `transfer`, and `uat-...` and `hotflip-...` of every model."""
        text = stages["text"]
        judged, searched = (texts_of(text, split) for split in (JUDGED, SEARCHED))
        by_id = {document.example_id: document for document in judged}
        results = {model: UatResult.read(stages[f"uat-{model}"]) for model in models}
        own = {
            attack: {model: records_of(stages[f"{attack}-{model}"]) for model in models}
            for attack in ("uat", "hotflip")
        }
        require_attacks("uat", own["uat"], by_id, uat)
        require_attacks("hotflip", own["hotflip"], by_id, hotflip)
        rows = records_of(stages["transfer"])
        require_transfer(rows, own, results, uat, searched)
        on_search = increases_of(rows)["uat", SEARCHED]
        tried = {
            "uat": Tried.of("uat", own["uat"], rows, on_search, results),
            "hotflip": Tried.of("hotflip", own["hotflip"], rows),
        }
        tokenizer = tokenizer_of(text)
        of_triggers = {model: Searched.of_triggers(of_model, uat, tokenizer) for model, of_model in results.items()}
        of_flips = {model: Searched.of_flips(of_model, hotflip) for model, of_model in own["hotflip"].items()}
        gates = [
            _spent("uat", of_triggers, len(searched)),
            _spent("hotflip", of_flips, len(next(iter(own["hotflip"].values())))),
        ]
        return cls(
            {"uat": of_triggers, "hotflip": of_flips},
            tried,
            {attack: tries.strongest() for attack, tries in tried.items()},
            gates,
        )


def _spent(attack: str, searched: Mapping[str, Searched], documents: int) -> Gate:
    """Every search spent what its configuration allows on so many documents, and one without gradients as much."""
    forwards, backwards = next(iter(searched.values())).attack.cost(documents)
    planned = Cost(
        forward_sequences=forwards,
        backward_sequences=backwards,
        blind_forward_sequences=forwards + BACKWARD_FORWARDS * backwards,
    )
    costs = {"the configuration": planned} | {model: result.cost for model, result in searched.items()}
    spent = {by: ", ".join(f"{count:,}" for count in cost.as_json().values()) for by, cost in costs.items()}
    what = f"{attack} on each model: forwards, backwards, and forwards of blind search, as configured"
    return same(what, spent)


def records_of(stage: StageInput) -> Rows:
    return list(read_records(stage.path / "records.parquet"))
