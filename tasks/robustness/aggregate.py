"""aggregate: the study's tables, report and `final_results.json`, every number with the run it came from."""

from collections.abc import Mapping

from tasks.attacks.comparisons import attack_findings, compared_pairs, primary, secondary, test_differences
from tasks.attacks.reading import ReadAttacks, records_of
from tasks.attacks.results import ATTACKS
from tasks.findings.final_results import of_runs
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.language.checks import documents, require_evaluation, require_text
from tasks.language.losses import rounded
from tasks.language.pairs import packed_split
from tasks.language.result import SetupResult
from tasks.language.stages import BaseConfig
from tasks.monotonic.arm import BASE
from tasks.monotonic.numbers import BaseFacts, facts_of_arms, gates, order_of
from tasks.monotonic.result import ArmResult
from tasks.robustness.attacked_texts import attacked_texts
from tasks.robustness.figures import figures
from tasks.robustness.final_results import FinalResults, TextProof
from tasks.robustness.report import report
from tasks.robustness.stages import AUDITED, AggregateConfig, EvaluateConfig
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
    attacks = ReadAttacks.of(stages, text, config.attacked, config.uat, config.hotflip)
    results = _results(run, config, attacks, stages)
    scratch = {BASE: base} if base.run.metrics_file.exists() else {}
    drawn = figures(results, attacks.strongest, arms | scratch)
    document = report(results, drawn, attacked_texts(results, attacks.strongest, stages))
    rows = {attack: [row for own in attacks.strongest[attack].values() for row in own] for attack in ATTACKS}
    return publish_report(run, stages, results, document, tables=rows)


def _results(
    run: StageRun, config: AggregateConfig, read: ReadAttacks, stages: Mapping[str, StageInput]
) -> FinalResults:
    """Every number of the study."""
    how, pairs, text = config.evaluation, compared_pairs(config.arms), stages["setup"]
    proof, blocks = require_text(text), packed_split(text.path / "text", "train")
    base = BaseFacts.of(stages["base"], BaseConfig, blocks)
    trained = {arm: stages[f"train-{arm}"] for arm in config.arms}
    arms, evaluated = facts_of_arms(trained, config.constraint, blocks), records_of(stages["evaluate"])
    precision = stages["evaluate"].configuration(EvaluateConfig).evaluation_precision
    models = require_evaluation(evaluated, documents(text, "test"), ["unigram", *config.attacked], precision)
    attacks = {name: attack_findings(found, read.tried[name], pairs, how) for name, found in read.searched.items()}
    differences, decides = test_differences(evaluated, pairs, how), config.primary.attack
    answer = primary(config.primary, read.tried[decides], attacks[decides], arms, how)
    of_study = of_runs(run, stages, AUDITED, [*gates(base, arms), *read.gates])
    of_trials = {arm: ArmResult.read(given).numerics for arm, given in trained.items()}
    origins = of_study["provenance"]
    return FinalResults(
        **of_study,
        seeds=[config.seed],
        primary=answer,
        arms=arms,
        models=models,
        evaluation_precision=precision,
        rounded=rounded(evaluated),
        differences=differences,
        attacks=attacks,
        transfer=read.transfer,
        order=order_of(stages["order"], [BASE, *config.arms]),
        secondary=secondary(answer, differences, attacks),
        base=base,
        text=proof.splits,
        text_proof=TextProof.of(proof, SetupResult.read(text)),
        numerics={arm: own or origins[f"train-{arm}"].numerics for arm, own in of_trials.items()},
        configuration=config.configuration,
    )
