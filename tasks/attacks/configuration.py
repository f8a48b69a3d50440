"""What each attack may spend."""

from __future__ import annotations

from tasks.stage.configuration import Configuration, scientific


class TriggerAttack(Configuration):
    """uat: one sequence of tokens in front of every text, which shall make the model predict all of them badly."""

    trigger_tokens: int = scientific(10, ge=1, description="Length of the trigger, in tokens.")
    restarts: int = scientific(
        5, ge=1, description="Searches from a random trigger; the best on the search text counts."
    )
    iterations: int = scientific(
        100, ge=1, description="Gradient steps in one search; each replaces at most one token."
    )
    candidates: int = scientific(100, ge=1, description="Replacements that are tried exactly in one iteration.")
    batch_documents: int = scientific(16, ge=1, description="Search documents on which one iteration compares them.")
    text_tokens: int = scientific(96, ge=2, description="Tokens of a document that are attacked, from its beginning.")
    control_triggers: int = scientific(10, ge=1, description="Random triggers of the same length, as the control.")


class FlipAttack(Configuration):
    """hotflip: each text for itself, a few of its tokens replaced so that the others are predicted badly."""

    documents: int = scientific(100, ge=2, description="Documents of attack-evaluation that are attacked.")
    flips: int = scientific(10, ge=1, description="Tokens that may be replaced in a document.")
    candidates: int = scientific(100, ge=1, description="Replacements that are tried exactly for each flip.")
    success_relative_increase: float = scientific(
        0.15, gt=0, description="An attack succeeds when it raises the loss by more than this share of the clean loss."
    )
    text_tokens: int = scientific(96, ge=2, description="Tokens of a document that are attacked, from its beginning.")
    control_draws: int = scientific(5, ge=1, description="Random replacements at random positions, as the control.")
