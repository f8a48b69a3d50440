"""Contents of `final_results.json` of one seed; fields stand in the order in which they are written.

Names of models are keys, as in `tasks.robustness.results`.
"""

from typing import Self

from pydantic import Field, JsonValue

from tasks.attacks.final_results import OF_ATTACKS, AttackResults
from tasks.findings.final_results import Origins
from tasks.language.configuration import HubDataset, HubStream, PackageDocs, Text
from tasks.language.losses import ModelLoss
from tasks.language.result import SetupResult, SplitsProof, SplitSummary
from tasks.monotonic.arm import BASE, BASELINE
from tasks.robustness.rounding import RoundedLoss
from tasks.stage.result import Result

TOY_PARAMETERS = 50_000_000
"""A smaller model is called a toy: it shows that the method runs, not what it does."""
NOT_KEPT = "of train documents the tokens alone are kept: setup counted them, and what it left out"
ORIGINS = OF_ATTACKS | Origins(
    computed={
        **dict.fromkeys(("rounded.*", "evaluation_precision"), "records of evaluate and stage.json"),
        **dict.fromkeys(("text.*", "text_proof.skipped_rows.*"), "the splits' files"),
        **dict.fromkeys(("numerics.*", "studied.*"), "stage.json"),
    },
    asked={},
    not_asked=dict.fromkeys(("text.train.*", "text_proof.*"), NOT_KEPT),
)


class TextProof(Result):
    """Parts left out of the text, and the most that a train document shares with an evaluation split."""

    largest_shared_shingles: float
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int
    skipped_rows: dict[str, int] = Field(default_factory=dict)

    @classmethod
    def of(cls, proof: SplitsProof, setup: SetupResult) -> Self:
        own = {name: getattr(proof, name) for name in cls.model_fields if name in SplitsProof.model_fields}
        return cls(**own, skipped_rows=setup.skipped_rows)


class StudiedText(Result):
    """Where the text comes from; data sets of the hub with their revisions."""

    source: str
    packages: list[str] = Field(default_factory=list)
    dataset: str = ""
    held_out: str = ""

    @classmethod
    def of(cls, text: Text) -> Self:
        return cls(
            source=text.source,
            packages=text.packages if isinstance(text, PackageDocs) else [],
            dataset=_named(text) if isinstance(text, HubDataset) else "",
            held_out=_named(text.held_out) if isinstance(text, HubDataset) and text.held_out else "",
        )


def _named(text: HubStream) -> str:
    return f"{text.dataset}, revision {text.revision}"


class FinalResults(AttackResults):
    """aggregate: every number of the study, with the runs that they came from (`runs` and `provenance` by stage)."""

    seeds: list[int]
    models: dict[str, ModelLoss]
    evaluation_precision: str = "fp32"
    rounded: dict[str, RoundedLoss] = Field(default_factory=dict)
    text: dict[str, SplitSummary]
    studied: StudiedText
    text_proof: TextProof
    numerics: dict[str, dict[str, JsonValue]]

    @property
    def is_toy(self) -> bool:
        return self.base.parameters < TOY_PARAMETERS

    @property
    def living(self) -> dict[str, float]:
        """Arm whose constrained layers live -> how much they do, as a share of what the baseline's do."""
        return {name: arm.alive_share for name, arm in self.arms.items() if name != BASELINE and not arm.dead}

    @property
    def forgetful(self) -> list[str]:
        """Models that cannot be shown to withstand anything: they have forgotten the language."""
        worst = self.models["unigram"].loss_nats_per_token
        return [name for name in (BASE, *self.arms) if self.models[name].loss_nats_per_token >= worst]

    @property
    def undecided_by_rounding(self) -> list[str]:
        """Differences of the test loss that are too near to nothing for the precision of the losses."""
        means = {name: abs(model.mean_nats_per_token) for name, model in self.rounded.items()}
        return [
            f"{row.model} - {row.reference} ({means[row.model] + means[row.reference]:.1e})"
            for row in self.differences
            if means and means[row.model] + means[row.reference] >= min(map(abs, row.interval_nats_per_token))
        ]
