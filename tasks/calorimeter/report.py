"""calorimeter-report: does pretraining help, and is filling in better than the mean of the neighbours?"""

from pathlib import Path

from tasks.calorimeter.final_results import SCORE, FinalResults, final_results
from tasks.calorimeter.judge import LIGHT
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import EndConfig
from tasks.findings.arms import answer_figure, arm_table, comparison_table
from tasks.findings.document import Document
from tasks.findings.numbers import span
from tasks.findings.prose import Pieces, fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import Comparison
from tasks.findings.table import Table
from tasks.stage.run import StageInput, StageRun
from tasks.training.onnx_files import exported_in_words

SHORT = "{:.3g}".format
NAMES = dict(zip(TARGETS, ("u (cm)", "v (cm)", "w (cm)", "energy (MeV)"), strict=True))
KINDS = {
    "scratch": "begins with random weights",
    "scratch-longer": "begins with random weights; has the pretraining's work too",
    "mae-init": "begins as the masked autoencoder",
    "raw": "begins with random weights; light is not normalised",
}
VERDICTS = {
    ("better", "better"): "Yes: pretraining helps",
    ("worse", "worse"): "No: pretraining harms",
    (None, "worse"): "No: training longer helps more",
}
"""How the pretrained compare with those from scratch, and with those as long from scratch -> the answer."""
FILLING = {"better": "better", "worse": "worse", "": "not shown better"}


def report(run: StageRun, config: EndConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(run, config, inputs)
    return publish_report(run, inputs, results, document(results))


def document(results: FinalResults) -> Document:
    """The report: answer and tables."""
    level, rows, filled = results.confidence_level, results.differences, results.filled
    means = {arm: of.mean for arms in (results.missed[SCORE], *filled.values()) for arm, of in arms.items()}
    kinds = {"what regressors miss": rows[:3], "what is filled in": rows[3:]}
    caption = "Left of the line the first misses less; in % of what the second misses."
    counts = " and ".join(f"{results.inpainter[of]:,.0f} {of}" for of in LIGHT)
    of_light = f"Error in photons on the {counts} hidden sensors of {results.events:,} events"
    arms = {arm: of for by_arm in filled.values() for arm, of in by_arm.items()}
    pieces: Pieces = {
        "answer": answer_figure(kinds, caption, "difference (%)", base=lambda _, row: means[row.reference]),
        "missed": _missed(results),
        "filled": arm_table(arms, level, of_light, draws=", of other seeds and other events"),
        "differences": comparison_table(rows, level, results.min_seeds),
    }
    words = {
        "verdict": verdict(rows),
        "missed": results.missed[SCORE],
        "short": SHORT,
        "exported": exported_in_words(results.exported, [*NAMES.values()]),
    }
    return fill(Path(__file__).with_name("report.md"), results, pieces, **words)


def _missed(results: FinalResults) -> Table:
    trivial = results.trivial["predict_mean"]
    rows: list[list[object]] = [
        [arm, KINDS[arm], len(of.values), SHORT(of.mean), span(of.interval, SHORT) if of.interval else "-"]
        + [SHORT(results.missed[target][arm].mean) for target in TARGETS]
        for arm, of in results.missed[SCORE].items()
    ]
    rows.append(["predicting the mean", "no learning", "-", "1", "-", *(SHORT(trivial[of]) for of in TARGETS)])
    return Table(
        f"68% of the {results.events:,} events of validation are missed by no more than this, in the mean over seeds: "
        "all targets as a share of what predicting the mean misses, with its interval over seeds; each in its unit.",
        ["arm", "what", "seeds", "all targets", "interval", *NAMES.values()],
        rows,
    )


def verdict(differences: list[Comparison]) -> str:
    """Pretraining first, which helps where it beats training without it and for longer; then bright and dim sensors."""
    equal, longer, _, bright, dim = ("better" if row.better else "worse" if row.worse else "" for row in differences)
    answer = VERDICTS.get((equal, longer)) or VERDICTS.get((None, longer)) or "Not shown: that pretraining helps"
    if bright == dim:
        return f"{answer}; inpainting is {FILLING[bright]} than neighbours' means."
    return f"{answer}; inpainting is {FILLING[bright]} on bright, {FILLING[dim]} on dim sensors."
