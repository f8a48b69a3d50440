"""What evaluate found, and the contents of `final_results.json`; names of models are keys."""

from __future__ import annotations

from typing import Any

from tasks.attacks.results import Findings, PrimaryAnswer, Tested
from tasks.findings.final_results import StudyResults
from tasks.findings.statistics.resampling import Estimate
from tasks.language.losses import LossDifference
from tasks.language.result import EvaluateResult, PackedPairs, SplitSummary, TrainedCheck
from tasks.monotonic.result import ArmFacts
from tasks.stage.result import Result

METRICS = ["rouge1", "rouge2", "rougeL", "rougeLsum"]


class SummariesResult(EvaluateResult):
    """evaluate: losses of every model; `lead_words` is the length of the trivial summary from the article's begin."""

    lead_words: int


class RewriteResult(Result):
    """rewrite: what was written of attacked articles lies in its records."""

    split: str
    records_digest: str


class Rouge(Result):
    """Mean ROUGE F1 over the test pairs, from 0 to 1."""

    rouge1: Estimate
    rouge2: Estimate
    rougeL: Estimate
    rougeLsum: Estimate


class ModelFacts(Rouge):
    """One model on the test split; `another_loss...` is that of another article's summary, `copied_share` of pairs of
    neighbouring words that it copies from the article."""

    loss_nats_per_token: float
    another_loss_nats_per_token: float
    copied_share: float


class OrderFacts(Result):
    """Says if each constrained sublayer is monotone in what its RMSNorm gives it, why, and the steepest fall found."""

    verdict: str
    reason: str = ""
    activation: str
    worst_violation_found: float


class FinalResults(StudyResults):
    """Every number of the report.

    `rouge_differences`, of ROUGE-1: comparison -> its estimate, paired by article; `rouge_drops`: attack -> model ->
    what its gradient search takes from the ROUGE-1 of the same articles.
    """

    seed: int
    lead_words: int
    trivial: dict[str, Rouge]
    models: dict[str, ModelFacts]
    arms: dict[str, ArmFacts]
    differences: list[LossDifference]
    rouge_differences: dict[str, Estimate]
    rouge_drops: dict[str, dict[str, Estimate]]
    order: dict[str, OrderFacts]
    attacks: dict[str, Findings]
    primary: PrimaryAnswer
    secondary: list[Tested]
    trained_check: TrainedCheck
    parameters: int
    architecture: str
    splits: dict[str, SplitSummary]
    packed: dict[str, PackedPairs]
    configuration: dict[str, Any]
