"""aggregate: the study's tables, report and `final_results.json`, every number with the run it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.records import read_records
from tasks.findings.audit import require_audited
from tasks.findings.provenance import provenance, run_directories
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.robustness import checks
from tasks.robustness.arm import ARMS, BASE, BASELINE, MONOTONIC
from tasks.robustness.attacked_texts import attacked_texts
from tasks.robustness.comparisons import attack_findings, primary, secondary, test_differences
from tasks.robustness.figures import figures
from tasks.robustness.final_results import ArmFacts, Attacks, BaseFacts, FinalResults, TextProof
from tasks.robustness.report import report
from tasks.robustness.results import (
    ArmResult,
    BaseResult,
    EvaluateResult,
    HotFlipResult,
    OrderResult,
    SetupResult,
    TransferResult,
    UatResult,
)
from tasks.robustness.search_checks import require_flips_searched, require_read, require_search
from tasks.robustness.stages import AUDIT_TOLERANCE, AUDITED, JUDGED, SEARCHED, AggregateConfig
from tasks.robustness.strongest import Tried
from tasks.robustness.text_checks import require_text
from tasks.robustness.training_checks import require_trainings
from tasks.robustness.transfer_checks import require_transfer
from tasks.stage.run import StageInput, StageRun

Rows = list[dict[str, Any]]
ATTACKS = ("uat", "hotflip")


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
    trained = {f"train-{arm}": handle for arm, handle in arms.items()}
    stages = {"setup": text, "base": base} | given | trained
    stages |= {"evaluate": evaluation, "order": order, "transfer": transfer, "audit": audit}
    stages = {name: stages[name] for name in sorted(stages, key=_place)}
    require_verified(stages)
    study = Read.of(config, stages)
    results = _results(config, study, stages, run.run.root)
    shown = {BASE: base} if study.base.training else {}
    drawn = figures(results, study.records, shown | arms)
    document = report(results, drawn, attacked_texts(results, study.records, stages))
    rows = {attack: [row for own in study.records[attack].values() for row in own] for attack in ATTACKS}
    return publish_report(run, stages, results, document, tables=rows)


ORDER = ("setup", "base", "start", "train", "evaluate", "order", "uat", "hotflip", "transfer", "audit")


def _place(stage: str) -> int:
    """Stages stand as the page calls them; `sorted` keeps the order of those of one kind."""
    return ORDER.index(stage.split("-")[0])


@dataclass(frozen=True)
class Read:
    """What the stages returned, and the records of those that keep any, checked against each other and the text."""

    text: SetupResult
    base: BaseResult
    arms: dict[str, ArmResult]
    evaluation: EvaluateResult
    order: OrderResult
    uat: dict[str, UatResult]
    hotflip: dict[str, HotFlipResult]
    transfer: TransferResult
    tried: dict[str, Tried]
    """Attack -> everything that was found, tried on every model."""
    records: dict[str, dict[str, Rows]]
    """Stage -> model -> its records; of an attack under the strongest of all that was found."""

    @classmethod
    def of(cls, config: AggregateConfig, stages: dict[str, StageInput]) -> Read:
        text = SetupResult.read(stages["setup"])
        require_text(text, stages["setup"])
        arms = {arm: ArmResult.read(stages[f"train-{arm}"]) for arm in config.arms}
        base, order = BaseResult.read(stages["base"]), OrderResult.read(stages["order"])
        require_trainings(config.configuration, stages, text, base, arms)

        evaluation, rows = EvaluateResult.read(stages["evaluate"]), _records(stages["evaluate"])
        scored = ["unigram", *config.attacked]
        checks.require_evaluation(evaluation, rows, checks.documents(stages["setup"], "test"), scored)
        records = {"evaluate": {name: [row for row in rows if row["model"] == name] for name in evaluation.models}}

        judged = checks.documents(stages["setup"], JUDGED)
        uat = {model: UatResult.read(stages[f"uat-{model}"]) for model in config.attacked}
        hotflip = {model: HotFlipResult.read(stages[f"hotflip-{model}"]) for model in config.attacked}
        for attack, found in (("uat", uat), ("hotflip", hotflip)):
            records[attack] = {model: _records(stages[f"{attack}-{model}"]) for model in found}
            settings = getattr(config, attack)
            for model, result in found.items():
                checks.require_attack(attack, model, result, records[attack][model], judged, settings)
            checks.require_comparable(attack, found, records[attack])
            for model, result in found.items():
                require_search(attack, model, result, settings, text.splits[SEARCHED].documents)
                if isinstance(result, HotFlipResult):
                    require_flips_searched(model, result, records[attack][model])
            require_read(attack, records[attack])
        transfer, transferred = TransferResult.read(stages["transfer"]), _records(stages["transfer"])
        searched = checks.documents(stages["setup"], SEARCHED)
        require_transfer(transfer, transferred, records, uat, list(searched.values()))
        tried = {
            name: Tried.of(name, records.pop(name), transferred, transfer, uat if name == "uat" else None)
            for name in ATTACKS
        }
        checks.require_order(order, _records(stages["order"]), [BASE, *config.arms], config.constraint.variant)
        return cls(
            text,
            base,
            arms,
            evaluation,
            order,
            uat,
            hotflip,
            transfer,
            tried,
            records | {name: found.strongest() for name, found in tried.items()},
        )


def _results(config: AggregateConfig, read: Read, stages: dict[str, StageInput], root: Path) -> FinalResults:
    """Every number of the study."""
    how, origins = config.evaluation, provenance(stages)
    pairs = compared_pairs(config.arms)
    differences = test_differences(read.records["evaluate"], pairs, how)
    attacks = Attacks(
        uat=attack_findings(read.uat, read.tried["uat"], pairs, how),
        hotflip=attack_findings(read.hotflip, read.tried["hotflip"], pairs, how),
    )
    arms = {name: _arm(name, read, config) for name in read.arms}
    found = primary(config.primary, read.tried[config.primary.attack], attacks, arms, how)
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
        base=BaseFacts(
            architecture=read.base.architecture,
            parameters=read.base.parameters,
            source=read.base.source,
            trained_check=read.base.trained_check,
            init_from=read.base.init_from,
        ),
        text=read.text.splits,
        text_proof=TextProof(
            largest_shared_shingles=read.text.largest_shared_shingles,
            duplicates_dropped_documents=read.text.duplicates_dropped_documents,
            contaminated_dropped_documents=read.text.contaminated_dropped_documents,
            skipped_rows=read.text.skipped_rows,
        ),
        numerics_changes={stage: given.numerics_changes for stage, given in stages.items() if given.numerics_changes},
        numerics={arm: read.arms[arm].numerics or origins[f"train-{arm}"].numerics for arm in config.arms},
        runs=run_directories(stages, root),
        provenance=origins,
        configuration=config.configuration,
    )


def compared_pairs(arms: list[str]) -> list[tuple[str, str]]:
    """Which models are compared: the baseline with base, every arm with the baseline, monotonic with every other."""
    others = [arm for arm in arms if arm not in (BASELINE, MONOTONIC)]
    return [
        (BASELINE, BASE),
        (MONOTONIC, BASELINE),
        *((arm, BASELINE) for arm in others),
        *((MONOTONIC, arm) for arm in others),
    ]


def _records(given: StageInput) -> Rows:
    return list(read_records(given.path / "records.parquet"))


def _arm(name: str, read: Read, config: AggregateConfig) -> ArmFacts:
    """What one arm spent, and what became of its constrained layers, beside the baseline's."""
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
