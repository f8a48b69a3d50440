"""aggregate: the study's tables, report and `final_results.json`, every number with the run it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.records import Rows, read_records
from tasks.attacks import checks as attack_checks
from tasks.attacks.comparisons import attack_findings, compared_pairs, primary, secondary, test_differences
from tasks.attacks.results import ATTACKS, HotFlipResult, TransferResult, UatResult
from tasks.attacks.stages import JUDGED, SEARCHED
from tasks.attacks.strongest import Tried
from tasks.findings.audit import require_audited
from tasks.findings.provenance import provenance, run_directories
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.language import checks as text_checks
from tasks.language.result import BaseResult, EvaluateResult, SetupResult
from tasks.monotonic import checks
from tasks.monotonic.arm import ARMS, BASE, BASELINE
from tasks.monotonic.result import ArmFacts, ArmResult, OrderResult
from tasks.robustness.attacked_texts import attacked_texts
from tasks.robustness.figures import figures
from tasks.robustness.final_results import BaseFacts, FinalResults, TextProof
from tasks.robustness.report import report
from tasks.robustness.stages import AUDIT_TOLERANCE, AUDITED, AggregateConfig
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
    drawn = figures(results, study.records, arms | ({BASE: base} if study.base.training else {}))
    document = report(results, drawn, attacked_texts(results, study.records, stages))
    rows = {attack: [row for own in study.records[attack].values() for row in own] for attack in ATTACKS}
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
    uat: dict[str, UatResult]
    hotflip: dict[str, HotFlipResult]
    transfer: TransferResult
    tried: dict[str, Tried]
    """Attack -> everything that was found, tried on every model."""
    records: dict[str, dict[str, Rows]]
    """Attack -> model -> its records under the strongest of all that was found."""

    @classmethod
    def of(cls, config: AggregateConfig, stages: dict[str, StageInput]) -> Read:
        text = SetupResult.read(stages["setup"])
        text_checks.require_text(text, stages["setup"])
        arms = {arm: ArmResult.read(stages[f"train-{arm}"]) for arm in config.arms}
        base, order = BaseResult.read(stages["base"]), OrderResult.read(stages["order"])
        checks.require_trainings(config.configuration, stages, text, base, arms)
        checks.require_order(order, _records(stages["order"]), [BASE, *config.arms], config.constraint.variant)
        evaluation, evaluated = EvaluateResult.read(stages["evaluate"]), _records(stages["evaluate"])
        test, judged, searched = (text_checks.documents(stages["setup"], of) for of in ("test", JUDGED, SEARCHED))
        text_checks.require_evaluation(evaluation, evaluated, test, ["unigram", *config.attacked])

        uat = {model: UatResult.read(stages[f"uat-{model}"]) for model in config.attacked}
        hotflip = {model: HotFlipResult.read(stages[f"hotflip-{model}"]) for model in config.attacked}
        own = {name: {model: _records(stages[f"{name}-{model}"]) for model in config.attacked} for name in ATTACKS}
        searches = text.splits[SEARCHED].documents
        attack_checks.require_attacks("uat", uat, own["uat"], judged, config.uat, searches)
        attack_checks.require_attacks("hotflip", hotflip, own["hotflip"], judged, config.hotflip, searches)
        transfer, transferred = TransferResult.read(stages["transfer"]), _records(stages["transfer"])
        attack_checks.require_transfer(transfer, transferred, own, uat, list(searched.values()))
        tried = {
            "uat": Tried.of("uat", own["uat"], transferred, transfer, uat),
            "hotflip": Tried.of("hotflip", own["hotflip"], transferred, transfer),
        }
        strongest = {name: found.strongest() for name, found in tried.items()}
        return cls(text, base, arms, evaluation, evaluated, order, uat, hotflip, transfer, tried, strongest)


def _results(config: AggregateConfig, read: Read, stages: dict[str, StageInput], root: Path) -> FinalResults:
    """Every number of the study."""
    how, origins, pairs = config.evaluation, provenance(stages), compared_pairs(config.arms)
    differences = test_differences(read.evaluated, pairs, how)
    attacks = {
        "uat": attack_findings(read.uat, read.tried["uat"], pairs, how),
        "hotflip": attack_findings(read.hotflip, read.tried["hotflip"], pairs, how),
    }
    arms, decides = {name: _arm(name, read, config) for name in read.arms}, config.primary.attack
    found = primary(config.primary, read.tried[decides], attacks[decides], arms, how)
    return FinalResults(
        study=config.study,
        seeds=[config.seed],
        primary=found,
        arms=arms,
        models=read.evaluation.models,
        differences=differences,
        attacks=attacks,
        transfer=read.transfer,
        order=read.order,
        audit=require_audited(stages["audit"], AUDITED, AUDIT_TOLERANCE),
        secondary=secondary(found, differences, attacks),
        base=BaseFacts(**{name: getattr(read.base, name) for name in BaseFacts.model_fields}),
        text=read.text.splits,
        text_proof=TextProof(**{name: getattr(read.text, name) for name in TextProof.model_fields}),
        numerics_changes={stage: given.numerics_changes for stage, given in stages.items() if given.numerics_changes},
        numerics={arm: read.arms[arm].numerics or origins[f"train-{arm}"].numerics for arm in config.arms},
        runs=run_directories(stages, root),
        provenance=origins,
        configuration=config.configuration,
    )


def _records(given: StageInput) -> Rows:
    return list(read_records(given.path / "records.parquet"))


def _arm(name: str, read: Read, config: AggregateConfig) -> ArmFacts:
    """Cost of one arm, and what became of its constrained layers, beside the baseline's."""
    arm, baseline = read.arms[name], read.arms[BASELINE]
    moved, reference = arm.movement.constrained, baseline.movement.constrained
    rise, whole = arm.sublayers.rise_nats_per_token, baseline.sublayers.rise_nats_per_token
    return ArmFacts(
        start=f"{ARMS[name].signs}, {ARMS[name].started(config.constraint)}" if ARMS[name].signs else None,
        by=arm.by,
        budget=arm.training.budget,
        steps=arm.training.steps,
        tokens_trained=arm.training.tokens_trained,
        best_step=arm.training.best_step,
        constraint=arm.constraint,
        sublayers=arm.sublayers,
        alive_share=rise / whole if whole > 0 else 0.0,
        movement=arm.movement,
        movement_ratio=moved / reference if moved is not None and reference else None,
        weights_digest=arm.weights_digest,
    )
