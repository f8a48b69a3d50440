"""The contents of `final_results.json`, names of models being keys, and how they are computed."""

from collections.abc import Mapping, Sequence

from storage.errors import require_equal
from storage.records import Rows
from tasks.attacks.comparisons import compared_pairs
from tasks.attacks.final_results import OF_ATTACKS, AttackResults, attack_results
from tasks.attacks.reading import ReadAttacks, records_of
from tasks.findings.final_results import Origins
from tasks.findings.statistics.resampling import Estimate, estimate, sums_by_source
from tasks.language.checks import require_evaluation, require_text
from tasks.language.configuration import EncoderDecoder
from tasks.language.result import PackedPairs, SplitSummary
from tasks.language.stages import PairBaseConfig
from tasks.language.texts import texts_of
from tasks.monotonic.arm import BASE, BASELINE
from tasks.monotonic.stages import TrainConfig
from tasks.stage.result import Result
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.stages import AUDITED, ReportConfig
from tasks.summarisation.words import METRICS, lead_words

REPAIRS = ("per-unit-signs",)
"""Arms that are as monotone as monotonic, and restrict less."""
ORIGINS = OF_ATTACKS | Origins(
    computed={
        "splits.*": "the splits' files",
        "packed.*": "the packed splits' descriptions",
        "began_copying": "stage.json",
    },
    asked={
        **dict.fromkeys(("models.*rouge*", "models.*.copied_share", "trivial.*", "lead_words", "rouge_*"), "scores"),
        "models.*loss_nats_per_token": "test losses",
    },
    not_asked={
        **dict.fromkeys(
            ("splits.train.*", "packed.*_cut", "packed.*.dropped_tokens", "packed.*.sha256"),
            "of train documents the tokens alone are kept: setup counted them, and what it cut",
        ),
    },
)


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


class FinalResults(AttackResults):
    """Every number of the report.

    `rouge_differences`, of ROUGE-1: comparison -> its estimate, paired by article; `rouge_drops`: attack -> model ->
    what its gradient search takes from the ROUGE-1 of the same articles.
    """

    seed: int
    lead_words: int
    trivial: dict[str, Rouge]
    models: dict[str, ModelFacts]
    rouge_differences: dict[str, Estimate]
    rouge_drops: dict[str, dict[str, Estimate]]
    splits: dict[str, SplitSummary]
    packed: dict[str, PackedPairs]
    began_copying: bool

    @property
    def repairs(self) -> dict[str, Estimate]:
        """Living arms that are as monotone as monotonic, and restrict less -> what decides, less the baseline's."""
        decides = self.attacks[self.primary.primary.attack]
        living = [arm for arm in REPAIRS if arm in self.arms and not self.arms[arm].dead]
        return {arm: decides.difference(arm, BASELINE).increase_nats_per_token for arm in living}

    @property
    def ahead_of_lead(self) -> list[str]:
        return [name for name in self.models if self.rouge_differences[f"{name} - lead"].value > 0]


def final_results(
    run: StageRun, config: ReportConfig, inputs: Mapping[str, StageInput], read: ReadAttacks
) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    text, models, rows = inputs["text"], [BASE, *config.arms], records_of(inputs["evaluation"])
    test, proof = texts_of(text, "test"), require_text(text)
    losses = require_evaluation(rows, test, models)
    settings = (config.evaluation.bootstrap_resamples, config.evaluation.confidence_level)
    of_model = {name: [row for row in rows if row["model"] == name] for name in models}
    model = inputs[BASE].configuration(PairBaseConfig).model
    return FinalResults(
        **attack_results(run, config, inputs, read, PairBaseConfig, AUDITED),
        seed=inputs[BASELINE].configuration(TrainConfig).seed,
        lead_words=lead_words([pair.summary for pair in test]),
        trivial={
            name: Rouge(**_rouge(of_model[BASELINE], f"{name}_", *settings)) for name in ("lead", "other_summary")
        },
        models={
            name: ModelFacts(
                **_rouge(own, "", *settings),
                loss_nats_per_token=losses[name].loss_nats_per_token,
                another_loss_nats_per_token=_total(own, "another_loss_sum_nats") / _total(own, "another_tokens_scored"),
                copied_share=_total(own, "copied_share") / len(own),
            )
            for name, own in of_model.items()
        },
        rouge_differences=_rouge_differences(of_model, compared_pairs(config.arms), *settings),
        rouge_drops=_drops(records_of(inputs["rewritten"]), read, *settings),
        splits=proof.splits,
        packed={"train": PackedPairs.read_file(text.path / "text" / "train.json")},
        began_copying=isinstance(model, EncoderDecoder) and model.start == "copying",
    )


def _total(rows: Rows, column: str) -> float:
    return float(sum(row[column] for row in rows))


def _mean(rows: Rows, column: str, less: str, resamples: int, level: float) -> Estimate:
    """Mean of a column over pairs, less that of another (empty: of none), with whole sources resampled."""
    counted = [
        {
            "example_id": row["example_id"],
            "source": row["source"],
            "n": 1,
            "x": row[column] - (row[less] if less else 0),
        }
        for row in rows
    ]
    sums = sums_by_source(counted, ("x", "n"))
    return estimate(lambda x, n: x / n, [sums["x"], sums["n"]], resamples, level)


def _rouge(rows: Rows, name: str, resamples: int, level: float) -> dict[str, Estimate]:
    return {metric: _mean(rows, f"{name}{metric}", "", resamples, level) for metric in METRICS}


def _drops(rows: Rows, read: ReadAttacks, resamples: int, level: float) -> dict[str, dict[str, Estimate]]:
    """Attack -> model -> ROUGE-1 of the articles as they were less that under attack, of every attacked article."""
    drops: dict[str, dict[str, Estimate]] = {}
    for attack, results in read.searched.items():
        for model in results:
            own = [row for row in rows if (row["attack"], row["model"]) == (attack, model)]
            asked = sorted(row["example_id"] for row in read.strongest[attack][model])
            wrote = sorted(row["example_id"] for row in own)
            require_equal(f"{model} wrote of every article that {attack} attacked", wrote, asked)
            drops.setdefault(attack, {})[model] = _mean(own, "clean_rouge1", "rouge1", resamples, level)
    return drops


def _rouge_differences(
    rows: Mapping[str, Rows], pairs: Sequence[tuple[str, str]], resamples: int, level: float
) -> dict[str, Estimate]:
    """ROUGE-1 of a model less that of another on the same articles, and of every model less the first words'."""
    differences = {}
    for model, reference in pairs:
        theirs = {row["example_id"]: row["rouge1"] for row in rows[reference]}
        both = [row | {"reference": theirs[row["example_id"]]} for row in rows[model]]
        differences[f"{model} - {reference}"] = _mean(both, "rouge1", "reference", resamples, level)
    for model, own in rows.items():
        differences[f"{model} - lead"] = _mean(own, "rouge1", "lead_rouge1", resamples, level)
    return differences
