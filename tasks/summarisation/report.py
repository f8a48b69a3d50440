"""report: what the constraint costs and whether it makes the model harder to attack, every number with its run."""

from typing import Any

from tasks.attacks.answer import WAYS, Answered, answer_figure, answered_once, comparisons, numbers, told
from tasks.attacks.reading import ReadAttacks
from tasks.attacks.sweep import sweep_attacks
from tasks.findings.document import Document, Section
from tasks.findings.figures import Estimated, forest
from tasks.findings.final_results import numerics_changed
from tasks.findings.gates import checked_section
from tasks.findings.numbers import NATS, p_value, rate_points, smallest, span, value_and_span
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.sweep.configuration import SweepConfig
from tasks.findings.table import Table
from tasks.monotonic.arm import ALIVE_SHARE, ARMS, BASE, BASELINE, LEAST_RANK, MONOTONIC
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.final_results import FinalResults, final_results
from tasks.summarisation.stages import ReportConfig
from tasks.summarisation.words import METRICS

REPAIRS = ("per-unit-signs",)
"""Arms that are as monotone as monotonic, and restrict less."""
POINTS = "{:.1f}".format
LIMITS = [
    "ROUGE compares words with one reference: it says nothing of whether a summary is true. Words of ASCII are stemmed "
    "as English ones, and scripts that leave no space between words count by character.",
    "Monotone is said of a sublayer in what its RMSNorm gives it, not in the residual stream, and of no whole model.",
    "Attacks change the article alone, and are judged by the loss of the reference; other attacks may find more.",
    "One seed: differences describe these trainings and rank nothing.",
]


def report(run: StageRun, config: ReportConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    read = ReadAttacks.of(inputs, inputs["text"], config.attacked, config.uat, config.hotflip)
    results = final_results(run, config, inputs, read)
    rows = {attack: [row for own in of.values() for row in own] for attack, of in read.strongest.items()}
    return publish_report(run, inputs, results, document(results), tables=rows)


def sweep_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> Published:
    """sweep over seeds: the arms compared over trainings and texts. Verifies every byte that it reads."""
    return sweep_attacks(run, config, studies, FinalResults)


def document(results: FinalResults) -> Document:
    """The report: a function of its numbers."""
    found, given = results.primary, answered_once(results.primary, results.attacks)
    answer = told(given)
    return Document(
        f"{results.study}: do non-negative weights make an encoder-decoder harder to attack, and what do they cost?",
        answer.verdict,
        answer.lead,
        [*numbers(given), *_numbers(results)],
        _figure(results) if found.answer is None else answer_figure(given),
        [answer.not_shown, *_not_shown(results)],
        f"Arms are fine-tuned alike from one {results.base.architecture} of {results.base.parameters:,} parameters, "
        f"which wrote summaries before; each is judged on {results.splits['test'].documents:,} test pairs. Losses are "
        "those of the references, in nats per token.",
        sections=[
            Section("What the constraint costs", points=_costs(results), tables=[_models(results)]),
            Section("Do the constrained layers live, and are they monotone?", tables=[_layers(results)]),
            Section("Attacks on the article", tables=[_effects(results), _compared(results, given)]),
            checked_section(results.gates, results.audit),
            Section("Limits", points=LIMITS),
        ],
    )


def _numbers(results: FinalResults) -> list[str]:
    """What the constraint costs, and how the repair stands, each in a line."""
    cost = next(row for row in results.differences if (row.model, row.reference) == (MONOTONIC, BASELINE))
    interval = span(cost.interval_nats_per_token, NATS)
    lines = [
        f"test loss, monotonic - baseline: {NATS(cost.difference_nats_per_token)} nats per token (interval {interval})"
    ]
    attack = results.primary.primary.attack
    for arm in (name for name in REPAIRS if name in results.arms and not results.arms[name].dead):
        row = results.attacks[attack].difference(arm, BASELINE).increase_nats_per_token
        lines.append(
            f"{attack}, {arm} - baseline: {NATS(row.value)} nats per token (interval {span(row.interval, NATS)})"
        )
    return lines


def _figure(results: FinalResults) -> Any:
    """Where the question has no answer: what each living arm gains or loses under attack, against the baseline."""
    attack, margin = results.primary.primary.attack, results.primary.primary.margin_nats_per_token
    rows = [
        Estimated("dead" if facts.dead else "arms whose layers live", f"{arm} - baseline", row.value, row.interval)
        for arm, facts in sorted(results.arms.items(), key=lambda item: bool(item[1].dead))
        if arm != BASELINE
        for row in [results.attacks[attack].difference(arm, BASELINE).increase_nats_per_token]
    ]
    caption = (
        f"What {attack} adds to the loss of an arm, less what it adds to that of the baseline: left of the line the "
        f"arm is harder to attack. Grey: too small to matter here, by the margin of {margin:g} that was set before."
    )
    return forest("answer", caption, rows, "difference (nats per token)", NATS, band=(-margin, margin))


def _not_shown(results: FinalResults) -> list[str]:
    points = [
        f"**The constrained layers of {name} are dead: {facts.dead}.** Its numbers are those of a model without them."
        for name, facts in results.arms.items()
        if facts.dead and name != BASELINE
    ]
    if (order := results.order[MONOTONIC]).verdict != "yes":
        points.append(f"**No sublayer of {MONOTONIC} may be called monotone: {order.reason}.**")
    ahead = [name for name in results.models if results.rouge_differences[f"{name} - lead"].value > 0]
    lead = POINTS(100 * results.trivial["lead"].rouge1.value)
    better = f"only {', '.join(ahead)} exceed" if ahead else "no model exceeds"
    points.append(f"**In ROUGE-1 {better} the first {results.lead_words} words of the article ({lead}).**")
    for name, findings in results.attacks.items():
        if weak := findings.beaten_by_blind_search:
            points.append(
                f"**{name}: the gradient search does not beat blind search at equal cost on {', '.join(weak)}.**"
            )
    if results.configuration["model"].get("start") == "copying":
        points.append(
            "The base model began with a cross-attention that was set by hand to copy: it did not learn to read."
        )
    return [*points, *numerics_changed(results.numerics_changes)]


def _costs(results: FinalResults) -> list[str]:
    packed = results.packed["train"]
    return [f"{name}: {'the pretrained model' if name == BASE else ARMS[name].meaning}" for name in results.models] + [
        f"Of {packed.blocks:,} training pairs {packed.articles_cut:,} articles and {packed.summaries_cut:,} summaries "
        "were longer than what is read, and cut at their end."
    ]


def _models(results: FinalResults) -> Table:
    rows = []
    tested = {row.model: row for row in results.differences if row.reference == BASELINE}
    for name, of in results.models.items():
        row = tested.get(name)
        cost = [NATS(row.difference_nats_per_token), span(row.interval_nats_per_token, NATS)] if row else ["-", "-"]
        gap = of.another_loss_nats_per_token - of.loss_nats_per_token
        rouge = [POINTS(100 * getattr(of, metric).value) for metric in METRICS]
        loss = [f"{of.loss_nats_per_token:.4f}", *cost, f"{gap:.4f}"]
        rows.append([name, *loss, *rouge, f"{of.copied_share:.0%}", results.run_of("evaluation")])
    for name, rouge_of in results.trivial.items():
        what = f"the first {results.lead_words} words" if name == "lead" else "another article's summary"
        rouge = [POINTS(100 * getattr(rouge_of, metric).value) for metric in METRICS]
        rows.append([what, "-", "-", "-", "-", *rouge, "-", results.run_of("evaluation")])
    interval = results.models[BASELINE].rouge1.interval or [0.0, 0.0]
    return Table(
        "Loss of the references on the test pairs (nats per token), less the baseline's, and what another article's "
        "summary costs more (near 0: the article is not read); ROUGE F1 x 100 (the baseline's ROUGE-1: interval "
        f"{' to '.join(POINTS(100 * end) for end in interval)}; RLsum goes by sentences), below it of "
        "what needs no model; share of pairs of words that are copied.",
        ["model", "loss", "- baseline", "interval", "gap", "R1", "R2", "RL", "RLsum", "copied", "run"],
        rows,
    )


def _layers(results: FinalResults) -> Table:
    rows = []
    for name, facts in results.arms.items():
        rise = [NATS(facts.sublayers.rise_nats_per_token), f"{facts.alive_share:.0%}"]
        ranks = ", ".join(f"{rank:.1f}" for rank in facts.sublayers.effective_rank.values())
        order = [results.order[name].verdict, f"{results.order[name].worst_violation_found:.2g}"]
        state = "dead" if facts.dead else "live"
        rows.append([name, facts.start or "base", *rise, ranks, state, *order, results.run_of(name)])
    return Table(
        "What replacing the constrained sublayers by their mean output adds to the validation loss (nats per token), "
        f"as a share of the baseline's (below {ALIVE_SHARE:.0%}: dead); effective rank of the outputs of each (median "
        f"below {LEAST_RANK}: dead); whether every sublayer is proved monotone in what its RMSNorm gives it, and the "
        "steepest fall of an output that was found.",
        ["arm", "start", "rise", "of baseline's", "ranks", "state", "monotone", "steepest fall", "run"],
        rows,
    )


def _effects(results: FinalResults) -> Table:
    rows = [
        [
            f"{name} on {model}",
            *value_and_span(effect.increase_nats_per_token, NATS),
            NATS(effect.control_increase_nats_per_token.value),
            NATS(effect.blind_increase_nats_per_token.value),
            *value_and_span(results.rouge_drops[name][model], rate_points),
            results.run_of("transfer"),
        ]
        for name, findings in results.attacks.items()
        for model, effect in findings.effects.items()
    ]
    return Table(
        "What the strongest attack that was found adds to the loss of a reference (nats per token), beside as many "
        "random tokens, and blind search at equal cost; and what the gradient search on the model alone takes from "
        "ROUGE-1 x 100 of the same articles (below 0: it adds).",
        ["attack", "increase", "interval", "random", "blind", "ROUGE-1 drop", "interval", "run"],
        rows,
    )


def _compared(results: FinalResults, given: Answered) -> Table:
    known = [
        (f"{name}, {row.model} - {row.reference}", row.increase_nats_per_token)
        for name, findings in results.attacks.items()
        for row in findings.differences
    ]
    ways = [(f"{what} ({kind})", row) for kind, what, row in comparisons(given) if kind == WAYS]
    rows = []
    for what, row in [*known, *ways]:
        tested = [p_value(row.p_value), smallest(row)] if row else ["-", "-"]
        rows.append([what, *value_and_span(row, NATS), *tested, results.run_of("transfer")])
    return Table(
        "Differences of that between models, and of the one that answers (the last rows: counted otherwise); p for one "
        "comparison (adjusted: final_results.json); the smallest true difference shown with a chance of 80 %.",
        ["difference", "value", "interval", "p", "could show", "run"],
        rows,
    )
