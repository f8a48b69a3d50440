"""aggregate: the study's tables, report and `final_results.json`, every number with the run it came from."""

from collections.abc import Mapping

from tasks.attacks.final_results import attack_results
from tasks.attacks.reading import ReadAttacks, records_of
from tasks.attacks.results import ATTACKS
from tasks.attacks.sweep import sweep_attacks
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.sweep.configuration import SweepConfig
from tasks.language.checks import require_evaluation, require_text
from tasks.language.result import SetupResult
from tasks.language.stages import BaseConfig, SetupConfig
from tasks.language.texts import texts_of
from tasks.monotonic.result import ArmResult
from tasks.robustness.attacked_texts import attacked_texts
from tasks.robustness.final_results import FinalResults, StudiedText, TextProof
from tasks.robustness.report import document
from tasks.robustness.rounding import require_compared, rounded
from tasks.robustness.stages import AUDITED, AggregateConfig, EvaluateConfig
from tasks.stage.run import StageInput, StageRun


def aggregate(run: StageRun, config: AggregateConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads, and writes what the study found, as numbers, words and pictures.

    `inputs` are the stages by the names that the page gives them; the records of each attack go beside, for a sweep,
    which resamples the sources of several studies together. Raises CheckFailed when these are not what the report
    would call them.
    """
    require_verified(inputs)
    attacks = ReadAttacks.of(inputs, config.attacked, config.uat, config.hotflip)
    results = _results(run, config, attacks, inputs)
    rows = {attack: [row for own in attacks.strongest[attack].values() for row in own] for attack in ATTACKS}
    shown = document(results, attacked_texts(results, attacks.strongest, inputs))
    return publish_report(run, inputs, results, shown, tables=rows)


def _results(
    run: StageRun, config: AggregateConfig, read: ReadAttacks, inputs: Mapping[str, StageInput]
) -> FinalResults:
    """Every number of the study."""
    text, evaluated = inputs["text"], records_of(inputs["evaluation"])
    proof, of_attacks = require_text(text), attack_results(run, config, inputs, read, BaseConfig, AUDITED)
    precision, test = inputs["evaluation"].configuration(EvaluateConfig).evaluation_precision, texts_of(text, "test")
    require_compared(evaluated, test, precision)
    numerics = {arm: ArmResult.read(inputs[arm]).numerics for arm in config.arms}  # of trials that were chosen from
    return FinalResults(
        **of_attacks,
        seeds=[config.seed],
        models=require_evaluation(evaluated, test, ["unigram", *config.attacked]),
        evaluation_precision=precision,
        rounded=rounded(evaluated),
        text=proof.splits,
        studied=StudiedText.of(text.configuration(SetupConfig).text),
        text_proof=TextProof.of(proof, SetupResult.read(text)),
        numerics={arm: own or of_attacks["provenance"][arm].numerics for arm, own in numerics.items()},
    )


def sweep_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> Published:
    """sweep over seeds: the arms compared over trainings and texts. Verifies every byte that it reads."""
    return sweep_attacks(run, config, studies, FinalResults)
