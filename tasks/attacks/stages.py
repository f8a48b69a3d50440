"""Configuration of the stages that attack models."""

from __future__ import annotations

from typing import ClassVar

from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.study import AttackStudy
from tasks.language.stages import OfLanguageStudy
from tasks.language.study import LanguageExecution
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics

KEY_COLUMNS = ("model", "example_id")
"""The columns that identify a record: there is one for each model and document."""

SEARCHED, JUDGED = "attack-search", "attack-evaluation"
"""The split that universal attacks learn from, and the one that attacks are judged on."""

ATTACK = Numerics(fields=("attack_batch_examples",), packages=("transformers",))


class OfAttackStudy(OfLanguageStudy):
    """What every stage of a study of attacks is given."""

    STUDY: ClassVar = AttackStudy


class AttackConfig(OfAttackStudy):
    """What both attacks are given beside their own settings: one model."""

    numerics: ClassVar = ATTACK

    model: str = scientific(description="Name of the attacked model, as records and tables call it.")
    folder: str = scientific("model", description="Where the stage that made it keeps it.")
    seed: int
    execution: LanguageExecution


class UatConfig(AttackConfig):
    """uat: a universal trigger for one model, learned on attack-search and judged on attack-evaluation."""

    attack: TriggerAttack = scientific(description="What the attack may spend, the same for every model.")


class HotFlipConfig(AttackConfig):
    """hotflip: token flips in each document of attack-evaluation, on one model."""

    attack: FlipAttack = scientific(description="What the attack may spend, the same for every model.")


class TransferConfig(OfAttackStudy):
    """transfer: what was found for each model, tried on every model."""

    numerics: ClassVar = ATTACK

    models: dict[str, str] = scientific(description="Name of each model, and the folder of its stage that holds it.")
    uat: TriggerAttack
    hotflip: FlipAttack
    execution: LanguageExecution
