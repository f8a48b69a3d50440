"""aggregate: the study's tables, report and `final_results.json`, every number with the run it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.records import Rows
from tasks.attacks.comparisons import attack_findings, compared_pairs, primary, secondary, test_differences
from tasks.attacks.reading import ReadAttacks, records_of
from tasks.attacks.results import ATTACKS
from tasks.findings.audit import require_audited
from tasks.findings.final_results import changes_of
from tasks.findings.provenance import provenance, run_directories
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.language import checks as text_checks
from tasks.language.result import BaseResult, EvaluateResult, SetupResult
from tasks.monotonic import checks
from tasks.monotonic.arm import BASE, BASELINE
from tasks.monotonic.result import ArmFacts, ArmResult, OrderResult
from tasks.robustness.attacked_texts import attacked_texts
from tasks.robustness.figures import figures
from tasks.robustness.final_results import BaseFacts, FinalResults, TextProof
from tasks.robustness.report import report
from tasks.robustness.stages import AUDITED, AggregateConfig
from tasks.stage.run import StageInput, StageRun

ORDER = ("setup", "base", "start", "train", "evaluate", "order", "uat", "hotflip", "transfer", "audit")
"""Stages stand as the page calls them."""


def aggregate(
    run: StageRun,
    config: AggregateConfig,
    text: StageInput,
    base: StageInput,
    evaluation: StageInput,
    order: StageInput,
    transfer: StageInput,
    audit: StageInput,
    **given: StageInput,
) -> Published:
    """Verifies every byte that it reads, and writes what the study found, as numbers, words and pictures.

    `given` are the arms, and the starts and attacks as `start-...`, `uat-...`, `hotflip-...`; the records of each
    attack go beside, for a sweep, which resamples the sources of several studies together. Raises CheckFailed when
    these are not what the report would call them.
    """
    arms = {arm: given.pop(arm) for arm in config.arms}
    stages = {"setup": text, "base": base, "evaluate": evaluation, "order": order, "transfer": transfer, "audit": audit}
    stages |= given | {f"train-{arm}": handle for arm, handle in arms.items()}
    stages = {name: stages[name] for name in sorted(stages, key=lambda name: ORDER.index(name.split("-")[0]))}
    require_verified(stages)
    study = Read.of(config, stages)
    results = _results(config, study, stages, run.run.root)
    drawn = figures(results, study.attacks.strongest, arms | ({BASE: base} if study.base.training else {}))
    document = report(results, drawn, attacked_texts(results, study.attacks.strongest, stages))
    rows = {attack: [row for own in study.attacks.strongest[attack].values() for row in own] for attack in ATTACKS}
    return publish_report(run, stages, results, document, tables=rows)


@dataclass(frozen=True)
class Read:
    """Results of the stages, and the records of those that keep any, checked against each other and the text."""

    text: SetupResult
    base: BaseResult
    arms: dict[str, ArmResult]
    evaluation: EvaluateResult
    evaluated: Rows
    order: OrderResult
    attacks: ReadAttacks

    @classmethod
    def of(cls, config: AggregateConfig, stages: dict[str, StageInput]) -> Read:
        text = SetupResult.read(stages["setup"])
        text_checks.require_text(text, stages["setup"])
        arms = {arm: ArmResult.read(stages[f"train-{arm}"]) for arm in config.arms}
        base, order = BaseResult.read(stages["base"]), OrderResult.read(stages["order"])
        checks.require_trainings(config.configuration, stages, text, base, arms)
        checks.require_order(order, records_of(stages["order"]), [BASE, *config.arms], config.constraint.variant)
        evaluation, evaluated = EvaluateResult.read(stages["evaluate"]), records_of(stages["evaluate"])
        test = text_checks.documents(stages["setup"], "test")
        models, precision = ["unigram", *config.attacked], config.configuration.get("evaluation_precision", "fp32")
        text_checks.require_evaluation(evaluation, evaluated, test, models, precision)

        attacks = ReadAttacks.of(stages, stages["setup"], config.attacked, config.uat, config.hotflip)
        return cls(text, base, arms, evaluation, evaluated, order, attacks)


def _results(config: AggregateConfig, read: Read, stages: dict[str, StageInput], root: Path) -> FinalResults:
    """Every number of the study."""
    how, origins, pairs = config.evaluation, provenance(stages), compared_pairs(config.arms)
    differences = test_differences(read.evaluated, pairs, how)
    attacks = {
        name: attack_findings(found, read.attacks.tried[name], pairs, how)
        for name, found in read.attacks.results.items()
    }
    arms, decides = (
        {name: ArmFacts.of(name, arm, read.arms[BASELINE], config.constraint) for name, arm in read.arms.items()},
        config.primary.attack,
    )
    found = primary(config.primary, read.attacks.tried[decides], attacks[decides], arms, how)
    return FinalResults(
        study=config.study,
        seeds=[config.seed],
        primary=found,
        arms=arms,
        models=read.evaluation.models,
        evaluation_precision=read.evaluation.precision,
        rounded=read.evaluation.rounded,
        differences=differences,
        attacks=attacks,
        transfer=read.attacks.transfer,
        order=read.order,
        audit=require_audited(stages["audit"], AUDITED),
        secondary=secondary(found, differences, attacks),
        base=BaseFacts(**{name: getattr(read.base, name) for name in BaseFacts.model_fields}),
        text=read.text.splits,
        text_proof=TextProof(**{name: getattr(read.text, name) for name in TextProof.model_fields}),
        numerics_changes={stage: changes for stage, given in stages.items() if (changes := changes_of(given))},
        numerics={arm: read.arms[arm].numerics or origins[f"train-{arm}"].numerics for arm in config.arms},
        runs=run_directories(stages, root),
        provenance=origins,
        configuration=config.configuration,
    )
