"""report: what the constraint costs and whether it makes the model harder to attack, every number with its run."""

from functools import partial
from pathlib import Path

from tasks.attacks import views
from tasks.attacks.answer import answer_figure, answered_once, numbers, told
from tasks.attacks.cautions import cautions, could_be_seen
from tasks.attacks.reading import ReadAttacks
from tasks.attacks.sweep import sweep_attacks
from tasks.findings.document import Document, Figure
from tasks.findings.figures import Estimated, forest
from tasks.findings.numbers import NATS, rate_points
from tasks.findings.prose import fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.sweep.configuration import SweepConfig
from tasks.findings.table import Table
from tasks.monotonic.arm import ARMS, BASE, BASELINE
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.final_results import FinalResults, final_results
from tasks.summarisation.stages import ReportConfig
from tasks.summarisation.words import METRICS


def report(run: StageRun, config: ReportConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    read = ReadAttacks.of(inputs, config.attacked, config.uat, config.hotflip)
    results = final_results(run, config, inputs, read)
    rows = {attack: [row for own in by_model.values() for row in own] for attack, by_model in read.strongest.items()}
    return publish_report(run, inputs, results, document(results), tables=rows)


def sweep_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> Published:
    """sweep over seeds: the arms compared over trainings and texts. Verifies every byte that it reads."""
    return sweep_attacks(run, config, studies, FinalResults)


def document(results: FinalResults) -> Document:
    """The report: a function of its numbers."""
    answered = answered_once(results.primary, results.attacks)
    pieces = {
        "answer": _figure(results) if results.primary.answer is None else answer_figure(answered),
        "losses": _loss_table(results),
        "layers": views.layer_table(results),
        "effects": views.effect_table(results, {"ROUGE-1 drop": partial(_drop, results)}),
        "comparison": views.comparison_table(results, answered),
        "differences": views.difference_table(results),
    }
    models = [f"{name}: {'the pretrained model' if name == BASE else ARMS[name].meaning}" for name in results.models]
    values = {
        "answer": told(answered),
        "of_answer": numbers(answered),
        "models": models,
        "NATS": NATS,
        "points100": _points,
    }
    words = {"cautions": cautions, "could_be_seen": could_be_seen}
    filled = fill(Path(__file__).with_name("report.md"), results, pieces, **values, **words)
    return views.dead_marked(filled, results.dead_arms)


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _figure(results: FinalResults) -> Figure:
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


def _drop(results: FinalResults, attack: str, model: str) -> str:
    """What the gradient search on the model alone takes from ROUGE-1 x 100 of the same articles."""
    return rate_points(results.rouge_drops[attack][model].value)


def _loss_table(results: FinalResults) -> Table:
    rows, run, less = [], results.run_of("evaluation"), views.of_baseline(results)
    for name, model in results.models.items():
        gap = model.another_loss_nats_per_token - model.loss_nats_per_token
        rouge = [_points(getattr(model, metric).value) for metric in METRICS]
        loss = [f"{model.loss_nats_per_token:.4f}", *less.get(name, "----")[:2], f"{gap:.4f}"]
        rows.append([name, *loss, *rouge, f"{model.copied_share:.0%}", run])
    for name, trivial in results.trivial.items():
        what = f"the first {results.lead_words} words" if name == "lead" else "another article's summary"
        rows.append([what, *"----", *(_points(getattr(trivial, metric).value) for metric in METRICS), "-", run])
    interval = results.models[BASELINE].rouge1.interval or [0.0, 0.0]
    return Table(
        "Loss of the references on the test pairs (nats per token), less the baseline's, and what another article's "
        "summary costs more (near 0: the article is not read); ROUGE F1 x 100 (the baseline's ROUGE-1: interval "
        f"{' to '.join(map(_points, interval))}; RLsum goes by sentences), below it of what needs no model; share of "
        "pairs of words that are copied.",
        ["model", "loss", "- baseline", "interval", "gap", "R1", "R2", "RL", "RLsum", "copied", "run"],
        rows,
    )
