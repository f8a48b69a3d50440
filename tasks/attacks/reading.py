"""What a report reads of the attacks: their results and records, checked against each other and the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from storage.records import Rows, read_records
from tasks.attacks.checks import require_attacks, require_transfer
from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.results import HotFlipResult, TransferResult, UatResult
from tasks.attacks.stages import JUDGED, SEARCHED
from tasks.attacks.strongest import Tried
from tasks.language.checks import documents
from tasks.stage.run import StageInput


@dataclass(frozen=True)
class ReadAttacks:
    """Attack -> model -> its result; attack -> everything that was found, tried on every model.

    `strongest`: attack -> model -> its records under the strongest of all that was found.
    """

    results: dict[str, dict[str, UatResult] | dict[str, HotFlipResult]]
    transfer: TransferResult
    tried: dict[str, Tried]
    strongest: dict[str, dict[str, Rows]]

    @classmethod
    def of(
        cls,
        stages: Mapping[str, StageInput],
        text: StageInput,
        models: Sequence[str],
        uat: TriggerAttack,
        hotflip: FlipAttack,
    ) -> Self:
        """`stages` hold `transfer`, and `uat-...` and `hotflip-...` of every model."""
        judged, searched = (documents(text, split) for split in (JUDGED, SEARCHED))
        triggers = {model: UatResult.read(stages[f"uat-{model}"]) for model in models}
        flips = {model: HotFlipResult.read(stages[f"hotflip-{model}"]) for model in models}
        own = {
            attack: {model: records_of(stages[f"{attack}-{model}"]) for model in models}
            for attack in ("uat", "hotflip")
        }
        require_attacks("uat", triggers, own["uat"], judged, uat, len(searched))
        require_attacks("hotflip", flips, own["hotflip"], judged, hotflip, len(searched))
        transfer, rows = TransferResult.read(stages["transfer"]), records_of(stages["transfer"])
        require_transfer(transfer, rows, own, triggers, list(searched.values()))
        tried = {
            "uat": Tried.of("uat", own["uat"], rows, transfer, triggers),
            "hotflip": Tried.of("hotflip", own["hotflip"], rows, transfer),
        }
        strongest = {attack: found.strongest() for attack, found in tried.items()}
        return cls({"uat": triggers, "hotflip": flips}, transfer, tried, strongest)


def records_of(given: StageInput) -> Rows:
    return list(read_records(given.path / "records.parquet"))
