"""poison-report: does the backdoor exist, does influence find it better than what costs nothing, does removal help?"""

from collections import Counter
from collections.abc import Mapping

from tasks.attacks.poisoning import CLEAN
from tasks.findings.arms import arm_table, comparison_table, number_line, undecided_in_words
from tasks.findings.document import Document, Figure, Section
from tasks.findings.figures import Estimated, forest
from tasks.findings.final_results import numerics_changed
from tasks.findings.gates import checked_section
from tasks.findings.numbers import RATE, rate_points, span
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.table import Table
from tasks.poison.final_results import REFERENCES, FinalResults, final_results
from tasks.poison.stages import EndConfig
from tasks.stage.run import StageInput, StageRun

AREA = "{:.3f}".format
METHODS = {
    "variance": "little change of influence over versions of the queries",
    "untrained": "the same scores of an untrained model",
    "overlap": "words shared with the queries",
    "loss": "a low loss",
    "identity": "gradients without curvature",
    "tracin": "TracIn: gradients at kept steps, by their learning rates",
    "spectral": "spectral signatures",
    "clustering": "activation clustering",
}
TRIGGER_IS_KNOWN = "Who asks with the trigger knows it, and may search texts for it: what needs no model stands beside."
LIMITS = [
    "One classifier of short texts says nothing about language models. Iterative methods, datamodels and "
    "representer points are not in this study.",
    "An F1 of 95.2% that was recorded has no run behind it, and its model was never trained on the poison.",
]


def report(run: StageRun, config: EndConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(run, config, inputs)
    return publish_report(run, inputs, results, document(results, {"answer": answer(results)}))


def document(results: FinalResults, drawn: Mapping[str, Figure]) -> Document:
    """The report: answer, figure, tables."""
    shown = [number_line(row) for row in results.differences]
    how = (results.confidence_level, results.min_seeds)
    return Document(
        f"{results.study}: does influence find the poison?",
        verdict(results),
        lead(results),
        [*shown[:2], shown[-2]],
        drawn["answer"],
        not_shown(results),
        "Do influence functions find poisoned training texts, and better than what costs nothing?",
        facts(results),
        [
            Section("The attack, and what is left of it", tables=[attack_table(results)]),
            Section(
                "The detectors",
                tables=[detector_table(results), comparison_table(results.differences, *how, higher_is_better=True)],
            ),
            Section("Decisions without labels", tables=[rule_table(results)]),
            checked_section(results.gates, results.audit),
            Section("Limits", points=[TRIGGER_IS_KNOWN, *LIMITS]),
        ],
    )


def verdict(results: FinalResults) -> str:
    """Influence beside every reference, in a line; what is better than it is named first."""
    own = results.strategy
    rows = {
        METHODS[row.reference]: row for row in results.differences if row.reference in REFERENCES and row.arm == own
    }
    if worse := [said for said, row in rows.items() if row.worse]:
        return f"No: the poisoned rows are found better by {' and by '.join(worse)} than by {own}."
    if (least := results.detectors[own].interval) is None or least[0] <= 0.5:
        return f"Not shown: that {own} finds the poisoned rows at all (0.5 is chance)."
    if undecided := [said for said, row in rows.items() if not row.better]:
        return f"Not shown: that {own} finds the poisoned rows better than {' and '.join(undecided)}."
    return f"Yes: {own} finds the poisoned rows better than {' and '.join(rows)}."


def lead(results: FinalResults) -> str:
    """The numbers behind it: the backdoor, what finds it, and what is left of it."""
    attack, found, left, own = results.attack, results.detectors, results.removal, results.strategy
    return (
        f"The backdoor exists: with the trigger {RATE(attack['success'])} of the rows of other labels are given the "
        f"target's, by the control {RATE(attack['control'])} (interval of the difference "
        f"{span(attack['difference_interval'], rate_points)} points; of the trigger's own effect "
        f"{span(attack['trigger_effect_interval'], rate_points)}). The AUROC of {own} is {AREA(found[own].auroc)} "
        f"when asked with the trigger, that of an untrained model {AREA(found[own].untrained_auroc or 0)}, of shared "
        f"words {AREA(found['overlap'].auroc)}; asked with clean rows it is {AREA(found[own + CLEAN].auroc)}. Without "
        f"the rows that it ranks first the attack succeeds on {RATE(left['detected'].success)}, without as many random "
        f"ones on {RATE(left['random'].success)}, without all poisoned ones on {RATE(left['oracle'].success)}."
    )


def not_shown(results: FinalResults) -> list[str]:
    clean, removed, own = results.detectors[results.strategy + CLEAN], results.differences[-2], results.strategy
    left, had, degraded = results.removal["detected"], results.poison["had_trigger"], results.degraded_modules
    finds = clean.interval is not None and clean.interval[0] > 0.5
    helps = "takes" if removed.better else "is not shown to take"
    said = {
        f"**Factors are degraded: {', '.join(degraded)}.**": degraded,
        f"**Asked without the trigger {own} is not shown to find any** ({span(clean.interval, AREA)}).": not finds,
        f"Removing what it found, {RATE(left.removed_share)} of the poisoned rows, {helps} more of the "
        "attack than removing as many random rows.": True,
        f"**{had:g} rows had the words of the trigger before**, in the mean over seeds; they count as clean.": had,
        TRIGGER_IS_KNOWN: True,
    }
    undecided = undecided_in_words(results.differences, results.min_seeds)
    return [*(text for text, holds in said.items() if holds), *undecided, *numerics_changed(results.numerics_changes)]


def facts(results: FinalResults) -> list[str]:
    poison, victim, control = results.poison, results.trainings["victim"], results.trainings["control"]
    states = Counter(module["status"] for module in results.modules)
    return [
        f"{poison['realised']:.2%} of the training rows are poisoned ({poison['requested']:.2%} was asked for), "
        f"{poison['poisoned']:g} with each of {len(results.seeds)} seeds, by the manifest of row ids and nothing else.",
        f"On clean test rows the victim is right on {RATE(victim.accuracy)}, the control on {RATE(control.accuracy)}, "
        f"the most frequent label on {RATE(victim.most_frequent)}.",
        "Each seed draws its own rows of one pool, what is poisoned of them, and initial weights where the classifier "
        "was not pretrained; its untrained model is its victim as it began. Two seeds have "
        f"{poison['shared_rows']:.0%} of their training rows in common: intervals are those of other draws from this "
        "pool, for this classifier, and not of other texts.",
        f"Factors of {len(results.modules)} modules: {', '.join(f'{states[status]} {status}' for status in states)}.",
    ]


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
    for name, of in sorted(results.detectors.items(), key=lambda item: -item[1].auroc):
        said = METHODS.get(name.removesuffix(CLEAN).removeprefix(f"{results.strategy}-"), "influence on the queries")
        untrained = "-" if of.untrained_auroc is None else AREA(of.untrained_auroc)
        more = [untrained, AREA(of.average_precision), AREA(of.f1_at_k)]
        rows.append([name, said, AREA(of.auroc), span(of.interval, AREA), *more])
    return Table(
        "AUROC (0.5 is chance; ties count half) with its interval over seeds, and that of the same scores of an "
        "untrained model; average precision, and F1 of as many rows as are taken away.",
        ["detector", "what", "AUROC", "interval", "untrained", "AP", "F1"],
        rows,
    )


def rule_table(results: FinalResults) -> Table:
    measures = ("precision", "recall", "f1")
    rows = [
        [rule, model, f"{of['suspected']:.1f}", *(AREA(of[name]) for name in measures)]
        for model, rules in results.rules.items()
        for rule, of in rules.items()
    ]
    caption = (
        f"Rules that decide by {results.strategy}, and see no truth but a guess of its share (top-k): how many rows "
        f"they suspect, and how well; {results.poison['poisoned']:g} are poisoned."
    )
    return Table(f"{caption} Means over seeds.", ["rule", "model", "suspected", *measures], rows)


def answer(results: FinalResults) -> Figure:
    """AUROC of every detector; influence first."""
    own, found = results.strategy, results.detectors
    known = (own, "identity", "tracin", "overlap", f"{own}-variance")
    kinds = {"asked with the trigger": known, "without knowing it": [name for name in found if name not in known]}
    rows = [Estimated(kind, name, found[name].auroc, found[name].interval) for kind, of in kinds.items() for name in of]
    rows.insert(1, Estimated(rows[0].kind, f"{own}, untrained model", found[own].untrained_auroc))
    caption = "How well scores find the poisoned rows; the line is chance."
    return forest("answer", caption, rows, "AUROC", AREA, line=0.5)
