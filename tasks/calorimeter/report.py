"""calorimeter-report: does pretraining help, and is filling in better than the mean of the neighbours?"""

from collections.abc import Mapping

from tasks.calorimeter.final_results import SCORE, FinalResults, final_results
from tasks.calorimeter.judge import PREDICTIONS
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import EndConfig
from tasks.findings.arms import answer_figure, arm_table, comparison_table, number_line, undecided_in_words
from tasks.findings.document import Document, Figure, Section
from tasks.findings.final_results import numerics_changed
from tasks.findings.gates import checked_section
from tasks.findings.numbers import RATE
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import Comparison
from tasks.findings.table import Table
from tasks.sensors.events import Events
from tasks.sensors.filled import LIGHT
from tasks.sensors.pictures import event_map, saliency_map
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.onnx_files import exported_in_words

SHORT, LOOKED_AT = "{:.3g}".format, 100
NAMES = dict(zip(TARGETS, ("u (cm)", "v (cm)", "w (cm)", "energy (MeV)"), strict=True))
NAMES[SCORE] = "All four, as a share of what predicting the mean misses"
KINDS = {
    "scratch": "begins with random weights",
    "scratch-longer": "begins with random weights; has the pretraining's work too",
    "mae-init": "begins as the masked autoencoder",
    "raw": "begins with random weights; light is not normalised",
}
SHARED = (
    "Intervals of regressors are those of other initial weights and orders of the events: all seeds share the showers, "
    "the masks that they are judged on, and one pretraining. scratch-longer has its work in the place of it; scratch "
    "has not."
)
DRAWS = (
    "p and interval of what is filled in are those of other seeds and other events of validation (two-way clusters); "
    "of what regressors miss, those of other seeds alone."
)
LIMITS = [
    "Every number is of the events of validation, on which the best step of each training was chosen too: there is no "
    "third split.",
    "Showers are points of light in a box, without scattering, reflection, pile-up, timing or direction: no number is "
    "one of the experiment's own detector.",
    "Every network that fills in starts from the mean of the neighbours that are seen, and learns a correction of it.",
]


def report(run: StageRun, config: EndConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(run, config, inputs)
    means = {arm: of.mean for arms in (results.missed[SCORE], *results.filled.values()) for arm, of in arms.items()}
    kinds = {"what regressors miss": results.differences[:3], "what is filled in": results.differences[3:]}
    caption = "Left of the line the first misses less; in % of what the second misses."
    drawn = {"answer": answer_figure(kinds, caption, "difference (%)", base=lambda _, row: means[row.reference])}
    events = Events.open(inputs["data"], "validation")
    drawn["event"] = event_map(events, inputs["judged"].path / PREDICTIONS, "mae")
    given = nested(inputs)
    first = {arm: given[arm][config.seeds[0]].path / "model" for arm in ("scratch", "mae-init")}
    drawn["saliency"] = saliency_map(first, config.seeds[0], events, LOOKED_AT)
    return publish_report(run, inputs, results, document(results, drawn))


def document(results: FinalResults, drawn: Mapping[str, Figure]) -> Document:
    """The report: answer, figures, tables."""
    level, rows, trivial = results.confidence_level, results.differences, {SCORE: 1.0} | results.trivial["predict_mean"]
    missed = [
        arm_table(arms, level, NAMES[of], KINDS, {"predicting the mean": trivial[of]})
        for of, arms in results.missed.items()
    ]
    filled = [
        arm_table(
            arms,
            level,
            f"Error in photons on the {results.inpainter[of]:,.0f} hidden {of} sensors of {results.events:,} events",
            draws=", of other seeds and other events",
        )
        for of, arms in results.filled.items()
    ]
    return Document(
        f"{results.study}: does pretraining help a calorimeter?",
        verdict(rows),
        lead(results),
        [number_line(row) for row in (*rows[:2], *rows[3:])],
        drawn["answer"],
        not_shown(results),
        "Do regressors that begin as a masked autoencoder miss less, and does an inpainter beat its neighbours' mean?",
        facts(results),
        [
            Section(
                "What regressors miss",
                [f"68% of the {results.events:,} events of validation are missed by no more than this."],
                tables=[*missed, worst_table(results)],
                figures=[drawn["saliency"]],
            ),
            Section("What is filled in", figures=[drawn["event"]], tables=filled),
            Section("Differences", [DRAWS], tables=[comparison_table(rows, level, results.min_seeds)]),
            checked_section(results.gates, results.audit),
            Section("Limits", points=[SHARED, *LIMITS]),
        ],
    )


def worst_table(results: FinalResults) -> Table:
    """The events that are missed most, with their truth."""
    rows = []
    for of in results.worst:
        by_target = [f"{SHORT(of[name])} ({SHORT(of[f'missed_{name}'])})" for name in TARGETS]
        rows.append([f"{of['event']:g}", *by_target, SHORT(of["share"])])
    return Table(
        "The events that mae-init misses most: their truth and, in brackets, by how much it is missed in the mean.",
        ["event", *(NAMES[name] for name in TARGETS), "share of predicting the mean"],
        rows,
    )


def verdict(differences: list[Comparison]) -> str:
    """Pretraining first, which helps where it beats training without it and for longer; then bright and dim sensors."""
    equal, longer, _, *filled = differences
    if equal.better and longer.better:
        answer = "Yes: pretraining helps"
    elif longer.worse:
        answer = "No: pretraining harms" if equal.worse else "No: training from scratch for as long helps more"
    else:
        answer = "Not shown: that pretraining helps"
    words = ("filled in better", "filled in worse", "not shown to be filled in better")
    bright, dim = (_word(row, *words) for row in filled)
    sensors = f"hidden sensors are {bright}" if bright == dim else f"bright sensors are {bright}, dim ones {dim}"
    return f"{answer}; {sensors} than by their neighbours' mean."


def _word(row: Comparison, better: str, worse: str, undecided: str) -> str:
    return better if row.better else worse if row.worse else undecided


def lead(results: FinalResults) -> str:
    """The numbers behind it, in units."""
    arms, filled = {**results.regressors, "predicting the mean": results.trivial["predict_mean"]}, results.inpainter
    missed = "; ".join(f"{arm} {', '.join(f'{SHORT(of[name])}' for name in TARGETS)}" for arm, of in arms.items())
    errors = {of: [SHORT(filled[f"{whose}_{of}"]) for whose in ("mae", "neighbour_mae")] for of in LIGHT}
    light = " and ".join(
        f"{filled[of]:,.0f} {of} ones by {own} photons (their neighbours' mean by {mean})"
        for of, (own, mean) in errors.items()
    )
    return (
        f"Of {', '.join(NAMES[name] for name in TARGETS)} 68% of {results.events:,} events are missed by no more than: "
        f"{missed}. "
        f"With {RATE(filled['actual_mask_ratio'])} of their live sensors hidden, the inpainter misses {light}."
    )


def not_shown(results: FinalResults) -> list[str]:
    said = _word(raw := results.differences[2], "miss less", "miss more", "are not shown to miss less")
    return [
        f"**The normaliser is an arm of its own**: from scratch, regressors with it {said} than those without "
        f"({number_line(raw)}).",
        *[
            f"**{count} events of {split} are there before them**: they count twice."
            for split, count in results.repeated.items()
        ],
        *[f"Light beyond limits.max_absolute_z was let in: {reason}" for reason in [results.reason_for_more] if reason],
        *undecided_in_words(results.differences, results.min_seeds),
        SHARED,
        *numerics_changed(results.numerics_changes),
    ]


def facts(results: FinalResults) -> list[str]:
    digests, shown = results.normaliser_digest, results.pretraining
    taken = next(of for role, of in results.taken.items() if role.startswith("mae-init"))
    others = sorted({digest[:12] for digest in digests.values()} - {digests["look"][:12]})
    lengths = ", ".join(f"{arm} {SHORT(of['gradient_norm_max'])}" for arm, of in results.regressors.items())
    return [
        f"All models but the raw ones have the normaliser {digests['look'][:12]}, the raw ones {' and '.join(others)}.",
        f"The pretraining hid {shown['hidden']:,.0f} of {shown['live']:,.0f} live sensors ({shown['mask_ratio']:g} was "
        f"asked for), and misses them by {SHORT(shown['mae'])} photons, their neighbours' mean by "
        f"{SHORT(shown['neighbour_mae'])}. A regressor takes {len(taken.taken)} of its tensors, refuses "
        f"{len(taken.refused)}, and has {len(taken.fresh)} of its own.",
        f"The longest gradients: {lengths}.",
        exported_in_words(results.exported, [NAMES[of] for of in TARGETS]),
    ]
