"""The summarisation study, typed: what a person writes in a profile, the UI's form, or `--set`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from tasks.attacks.study import AttackStudy
from tasks.language.configuration import PairChecks, PairModel, PairText
from tasks.stage.configuration import Configuration, scientific
from tasks.stage.validation import require_at_most

WITHOUT_PAIRS = ("shifted", "random-replacements")
"""Arms that need LayerNorm, or blocks of text."""


class Decoding(Configuration):
    """How summaries are written: by beam search without chance, the same for every model."""

    beams: int = scientific(4, ge=1, description="Summaries that are kept side by side while one is written.")
    length_penalty: float = scientific(1.0, description="Above 0 longer summaries are preferred, below 0 shorter ones.")
    min_tokens: int = scientific(3, ge=0, description="Tokens that a summary has at least.")
    no_repeat_tokens: int = scientific(3, ge=0, description="So many tokens in a row are written once; 0: any number.")


class Study(AttackStudy):
    """One configured experiment: pairs, model, arms, budgets, seed."""

    text: PairText = scientific(description="Where articles and summaries come from.")
    model: PairModel = scientific(description="Where the encoder-decoder comes from.")
    base_checks: PairChecks = scientific(PairChecks(), description="When the base model counts as trained.")
    prefix: str = scientific("summarize: ", description="Text in front of every article.")
    article_tokens: int = scientific(
        512, ge=16, description="Tokens of an article that are read, its prefix and end counted; the rest is cut."
    )
    summary_tokens: int = scientific(
        128, ge=8, description="Tokens of a summary that are learned, scored or written, its end counted."
    )
    decoding: Decoding = scientific(Decoding(), description="How summaries are written.")

    CHANGED_FIRST: ClassVar[tuple[str, ...]] = (
        "name", "seed", "arms", "budget.epochs", "budget.learning_rate", "decoding.beams", "hotflip.documents",
        "execution.device", "execution.micro_batch_examples",
    )  # fmt: skip

    @model_validator(mode="after")
    def _pairs_fit(self) -> Study:
        room = self.article_tokens - 1
        advice = "raise article_tokens, or lower it: nothing of what is attacked may be cut"
        longest = self.uat.trigger_tokens + self.uat.text_tokens
        require_at_most("uat.trigger_tokens + uat.text_tokens", longest, "article_tokens - 1,", room, advice)
        require_at_most("hotflip.text_tokens", self.hotflip.text_tokens, "article_tokens - 1,", room, advice)
        require_at_most("decoding.min_tokens", self.decoding.min_tokens, "summary_tokens", self.summary_tokens)
        if self.constraint.start not in ("positive-part", "absolute"):
            raise ValueError(f"constraint.start {self.constraint.start} does not exist in a study of pairs")
        if self.learning_rates:
            raise ValueError("learning_rates are not tried out in this study: leave them out, and set budget")
        if never := [arm for arm in self.arms if arm in WITHOUT_PAIRS]:
            raise ValueError(f"arms {', '.join(never)} do not exist in a study of pairs: leave them out of arms")
        return self

    @property
    def attacked_tokens(self) -> int:
        """Tokens of an article of which no attack may lose any."""
        return max(self.uat.trigger_tokens + self.uat.text_tokens, self.hotflip.text_tokens)
