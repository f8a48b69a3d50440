"""poison-report: does the backdoor exist, does influence find it better than what costs nothing, does removal help?"""

from collections.abc import Sequence
from pathlib import Path

from tasks.findings.arms import arm_table, comparison_table
from tasks.findings.document import Document, Figure
from tasks.findings.figures import Estimated, forest
from tasks.findings.numbers import RATE, span
from tasks.findings.prose import Pieces, fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.table import Table
from tasks.poison.final_results import REFERENCES, FinalResults, final_results
from tasks.poison.stages import OWN, EndConfig
from tasks.stage.run import StageInput, StageRun

AREA = "{:.3f}".format


def report(run: StageRun, config: EndConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(run, config, inputs)
    return publish_report(run, inputs, results, document(results))


def document(results: FinalResults) -> Document:
    """The report: answer, figure, tables."""
    how = (results.confidence_level, results.min_seeds)
    pieces: Pieces = {
        "answer": answer(results),
        "attack": attack_table(results),
        "detectors": detector_table(results),
        "differences": comparison_table(results.differences, *how, higher_is_better=True),
    }
    return fill(Path(__file__).with_name("report.md"), results, pieces, verdict=verdict, area=AREA)


def verdict(results: FinalResults) -> str:
    """Influence beside every reference; what is better than it is named first."""
    rows = [row for row in results.differences if row.arm == OWN and row.reference in REFERENCES]
    worse, undecided = (
        [row.reference for row in rows if of(row)] for of in (lambda row: row.worse, lambda row: not row.better)
    )
    least = results.detectors[OWN].interval or [0.0]
    cases = (
        (worse, f"No: {_listed(worse)} found the poison better than {OWN}."),
        (least[0] <= 0.5, f"Not shown: that {OWN} finds the poison at all."),
        (undecided, f"Not shown: that {OWN} beats {_listed(undecided)}."),
        (True, f"Yes: {OWN} finds the poison better than all {len(rows)} references."),
    )
    return next(words for holds, words in cases if holds)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:2])} and {len(names) - 2} more" if len(names) > 3 else " and ".join(names)


def attack_table(results: FinalResults) -> Table:
    arms = {**results.trainings, **{f"without {name}": of for name, of in results.removal.items()}}
    kinds = {
        name: f"without trigger {RATE(of.without_trigger)}; {RATE(of.removed_share)} of the poisoned rows are gone; "
        f"accuracy {RATE(of.accuracy)}"
        for name, of in arms.items()
    }
    return arm_table(arms, results.confidence_level, "Success of the attack", kinds)


def detector_table(results: FinalResults) -> Table:
    rows = []
    for name, detector in sorted(results.detectors.items(), key=lambda item: -item[1].auroc):
        untrained = "-" if detector.untrained_auroc is None else AREA(detector.untrained_auroc)
        area, precision = AREA(detector.auroc), AREA(detector.average_precision)
        rows.append([name, area, span(detector.interval, AREA), untrained, precision])
    return Table(
        "AUROC (0.5 is chance; ties count half) with its interval over seeds, and that of the same scores of an "
        "untrained model; average precision.",
        ["detector", "AUROC", "interval", "untrained", "AP"],
        rows,
    )


def answer(results: FinalResults) -> Figure:
    """AUROC of every detector; influence first."""
    detectors = results.detectors
    rows = [Estimated("detectors", name, of.auroc, of.interval) for name, of in detectors.items()]
    rows.insert(1, Estimated("detectors", f"{OWN}, untrained model", detectors[OWN].untrained_auroc))
    caption = "How well scores find the poisoned rows; the line is chance."
    return forest("answer", caption, rows, "AUROC", AREA, line=0.5)
