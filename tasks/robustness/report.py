"""The study's report: its pieces; what it says stands in report.md."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tasks.attacks import views
from tasks.attacks.answer import answer_figure, answered_once, numbers, told
from tasks.attacks.cautions import cautions, could_be_seen, listed, of_control
from tasks.findings.document import Document, Excerpt, Folded
from tasks.findings.final_results import numerics_differ
from tasks.findings.numbers import NATS, RATE, perplexity, value_and_span
from tasks.findings.prose import fill
from tasks.findings.table import Table
from tasks.monotonic.arm import ARMS, BASE
from tasks.robustness.attacked_texts import MOST_TOKENS, AttackedTexts
from tasks.robustness.final_results import FinalResults

MODELS = {
    "unigram": "not a network: predicts every token by how often it occurs in the train split",
    "untrained": "the network with random weights, before its pretraining",
    BASE: "the trained model that all arms start from",
    "constrained-untrained": "where monotonic starts: base with its constrained weights made non-negative, not trained",
    **{name: arm.meaning for name, arm in ARMS.items()},
}
"""Model -> what it is; `base@0.5` is base after half of its training."""
NONE: Mapping[str, Any] = MappingProxyType({})


def document(results: FinalResults, attacked: Mapping[str, AttackedTexts] = NONE) -> Document:
    """The report; `attacked`, by attack, is made of what the stages keep, not of their numbers."""
    answered = answered_once(results.primary, results.attacks)
    shown: list[Excerpt] = [excerpt for texts in attacked.values() for excerpt in texts.shown]
    folded: list[Folded] = [part for texts in attacked.values() for part in texts.folded]
    constrained = next((arm.constraint.layers for arm in results.arms.values() if arm.constraint), [])
    pieces = {
        "answer": answer_figure(answered),
        "comparison": views.comparison_table(results, answered),
        "layers": views.layer_table(results),
        "losses": _loss_table(results),
        "effects": views.effect_table(results, {"success": partial(_success, results)}),
        "differences": views.difference_table(results),
        "equal loss": _equal_loss_table(results),
        "texts": shown,
        "other texts": folded,
        "signs": Folded("The layers whose signs were checked", "\n".join(constrained)),
    }
    words = (cautions, could_be_seen, of_control, listed, models, numerics_differ)
    values = {"answer": told(answered), "of_answer": numbers(answered), "most_tokens": MOST_TOKENS, "NATS": NATS}
    values |= {word.__name__: word for word in words}
    filled = fill(Path(__file__).with_name("report.md"), results, pieces, **values)
    return views.dead_marked(filled, results.dead_arms)


def models(results: FinalResults) -> list[str]:
    """A line for each model of this study: what its name means."""
    kept = [f"{name}: {name.split('@')[0]} after that share of its training" for name in results.models if "@" in name]
    return [f"{name}: {MODELS[name]}" for name in results.models if "@" not in name] + kept


def _success(results: FinalResults, attack: str, model: str) -> str:
    """The rate of texts on which the attack succeeds, and random tokens do."""
    effect = results.attacks[attack].effects[model]
    rates = (effect.success_rate, effect.control_success_rate)
    return " / ".join(RATE(rate.value) for rate in rates if rate) or "-"


def _loss_table(results: FinalResults) -> Table:
    rows, less, run = [], views.of_baseline(results), results.run_of("evaluation")
    for name, model in results.models.items():
        rows.append(
            [name, perplexity(model.perplexity), f"{model.loss_nats_per_token:.4f}", *less.get(name, "----"), run]
        )
    return Table(
        "Loss of every model on the same tokens of the test split, and that less the baseline's, paired by document; "
        "sources resampled; one seed. p by exchanges within sources, and adjusted for the "
        f"{len(results.secondary)} secondary comparisons together (Holm 1979).",
        ["model", "perplexity", "nats per token", "- baseline", "interval", "p", "adjusted", "run"],
        rows,
    )


def _equal_loss_table(results: FinalResults) -> Table:
    rows, run = [], results.run_of("transfer")
    for attack, findings in results.attacks.items():
        for row in findings.at_equal_loss:
            between = " and ".join(row.between) if row.covered else f"beyond {row.between[0]}"
            difference = value_and_span(row.increase_nats_per_token, NATS)
            rows.append([attack, row.model, f"{row.clean_loss_nats_per_token:.4f}", between, *difference, run])
    return Table(
        "At equal clean loss: what the attack adds to each arm, less what it adds to the unconstrained model at the "
        "same clean loss, read off the line between two moments of its training (snapshots, base, baseline), in nats "
        "per token, not tested. Every loss that this is made from stands in the run's records.",
        ["attack", "arm", "clean", "between", "difference", "interval", "run"],
        rows,
    )
