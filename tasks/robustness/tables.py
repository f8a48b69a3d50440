"""The study's tables. Every row ends with the name of the run that its numbers came from."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tasks.attacks.answer import COMPARISON, COULD_SHOW, Answered, comparison_rows
from tasks.attacks.configuration import BUDGET_SHARES
from tasks.attacks.results import Findings, Trigger
from tasks.findings.document import Section
from tasks.findings.numbers import NATS, RATE, SHARE, p_value, perplexity, rate_points, smallest, span, value_and_span
from tasks.findings.table import Quoted, Table
from tasks.monotonic.stages import DOCUMENTS
from tasks.robustness.final_results import FinalResults

LOSS, COUNT, TIMES = "{:.4f}".format, "{:,}".format, "{:.2f}".format


def dead_marked(sections: Iterable[Section], dead: Collection[str]) -> list[Section]:
    """The sections, where a model with dead layers is called so in bold wherever a table names it."""

    def marked(cell: object) -> object:
        if not isinstance(cell, str) or isinstance(cell, Quoted):
            return cell
        on, name = ("on ", cell[3:]) if cell.startswith("on ") else ("", cell)
        if not (of := [part for part in re.split(r", | - ", name) if part in dead]):
            return cell
        which = f": {', '.join(of)}" if " - " in name else ""
        return f"{on}**{name} (dead{which})**"

    def whole(table: Table) -> Table:
        rows = [[*map(marked, row)] for row in table.rows]
        return replace(table, header=[str(marked(name)) for name in table.header], rows=rows)

    return [replace(section, tables=[*map(whole, section.tables)]) for section in sections]


def primary_table(results: FinalResults, given: Answered) -> Table:
    asked, run = results.primary.primary, results.run_of("transfer")
    how = "by exchanges within sources (of n sources never below 2 / 2^n)"
    if results.attacks[asked.attack].one_for_all:
        how = "of Student's t, over searches and sources"
    return Table(
        f"The primary comparison ({asked.attack}, {asked.measure.replace('_', ' ')}), nats per token; margin "
        f"{asked.margin_nats_per_token:g}. Below it the same against every placebo whose layers live, and in other "
        f"ways. p {how}, for one comparison (adjusted: final_results.json); where there is none, nothing was tested, "
        f"and the interval stands for itself alone. Last, {COULD_SHOW}.",
        [*COMPARISON, "run"],
        [[*row, run] for row in comparison_rows(given)],
    )


def liveness_table(results: FinalResults) -> Table:
    rows = []
    for name, arm in results.arms.items():
        ranks, moved = arm.sublayers.effective_rank.values(), arm.movement.constrained
        alive = [NATS(arm.sublayers.rise_nats_per_token), f"{arm.alive_share:.1%}", f"{sum(ranks) / len(ranks):.1f}"]
        moves = [
            "-" if moved is None else f"{moved:.2%}",
            "-" if arm.movement_ratio is None else TIMES(arm.movement_ratio),
            f"{arm.constraint.share_of_zeros:.0%}" if arm.constraint else "-",
        ]
        training = [COUNT(arm.best_step), f"{arm.budget['learning_rate']:g}"]
        rows.append([name, arm.start or "base", arm.by, *alive, *moves, *training, results.run_of(f"train-{name}")])
    return Table(
        "What the constrained sublayers do on the validation split: what their replacement by their mean output adds "
        "to the loss (nats per token), as a share of the baseline's; effective rank of their outputs without what a "
        "LayerNorm takes away, mean over layers; median relative movement of their weights in training, and that as a "
        "multiple of the baseline's; share of these weights that are 0; the step that was kept, and the peak of the "
        "learning rate.",
        [
            *("arm", "start", "kept by", "rise", "of baseline's", "rank", "moved", "x baseline", "zeros", "best step"),
            *("rate", "run"),
        ],
        rows,
    )


def loss_tables(results: FinalResults) -> list[Table]:
    run, level = results.run_of("evaluate"), results.differences[0].confidence_level
    losses = [
        [name, perplexity(of.perplexity), LOSS(of.loss_nats_per_token), COUNT(of.tokens_scored), run]
        for name, of in results.models.items()
    ]
    differences = []
    for row in results.differences:
        difference = [NATS(row.difference_nats_per_token), span(row.interval_nats_per_token, NATS)]
        tested = [*map(p_value, (row.p_value, results.adjusted("test loss", row.model, row.reference)))]
        differences.append([f"{row.model} - {row.reference}", *difference, *tested, run])
    return [
        Table(
            "Loss of every model on the same tokens of the test split.",
            ["model", "perplexity", "nats per token", "tokens scored", "run"],
            losses,
        ),
        Table(
            "Differences of these losses, paired by document; sources resampled; one seed. p by exchanges within "
            f"sources, and {_adjusted(results)}.",
            ["difference", "nats per token", f"{level:.0%} interval", "p", "adjusted", "run"],
            differences,
        ),
        *([_rounding_table(results)] if results.rounded else []),
    ]


def _rounding_table(results: FinalResults) -> Table:
    rows, run = [], results.run_of("evaluate")
    for name, of in results.rounded.items():
        rounding = map("{:.1e}".format, (of.mean_nats_per_token, of.largest_nats_per_token))
        rows.append([name, results.evaluation_precision, *rounding, COUNT(of.documents), run])
    return Table(
        f"These losses are in {results.evaluation_precision}. What that does to them: loss less that in fp32, in nats "
        "per token, on the same documents of every model; mean, and the largest of a document, without its sign.",
        ["model", "precision", "mean", "largest", "documents", "run"],
        rows,
    )


def _adjusted(results: FinalResults) -> str:
    return f"adjusted for the {len(results.secondary)} secondary comparisons together (Holm 1979)"


def attack_tables(name: str, results: FinalResults) -> list[Table]:
    """Everything that was measured of one attack, in the order in which it is read."""
    findings = results.attacks[name]
    return [
        _effect_table(results, findings),
        *([] if findings.one_for_all else [_success_table(results, findings)]),
        _search_table(name, results, findings),
        _difference_table(name, results, findings),
        _equal_loss_table(results, findings),
        _transfer_table(name, results),
        *([_trigger_table(results, findings)] if findings.one_for_all else []),
    ]


def _effect_table(results: FinalResults, findings: Findings) -> Table:
    level = f"{next(iter(findings.effects.values())).confidence_level:.0%}"
    by = "the trigger" if findings.one_for_all else "the flips of most texts"
    rows = []
    for model, effect in findings.effects.items():
        losses = map(LOSS, (effect.clean_loss_nats_per_token, effect.attacked_loss_nats_per_token))
        increase = value_and_span(effect.increase_nats_per_token, NATS)
        increase += value_and_span(effect.relative_increase, SHARE)
        rows.append([model, *losses, *increase, _found_for(findings.attacked_by[model]), results.run_of("transfer")])
    return Table(
        "The attack: clean loss of the whole texts in nats per token, its increase where nothing was written under "
        f"the strongest attack, also as a share of the clean loss; {level} intervals over sources. Attacked = clean + "
        f"increase. Last, the model that {by} was found for" + (", and how many." if not findings.one_for_all else "."),
        ["model", "clean", "attacked", "increase", "interval", "relative", "interval", "found for", "run"],
        rows,
    )


def _found_for(texts: Mapping[str, int]) -> str:
    """`texts`: model -> texts whose attack was found for it, most first."""
    model, count = next(iter(texts.items()))
    return model if len(texts) == 1 else f"{model}, {count} of {sum(texts.values())}"


def _success_table(results: FinalResults, findings: Findings) -> Table:
    threshold = getattr(findings.attack, "success_relative_increase", 0.0)
    rows = []
    for model, effect in findings.effects.items():
        rates = [*value_and_span(effect.success_rate, RATE), *value_and_span(effect.control_success_rate, RATE)]
        excess, flips = value_and_span(effect.success_rate_minus_control, rate_points), findings.flips[model]
        texts = map(COUNT, (flips.unchanged_documents, findings.round_trips_documents[model]))
        clean, run = LOSS(effect.clean_loss_nats_per_token), results.run_of("transfer")
        rows.append([model, clean, *rates, *excess, TIMES(flips.mean), *texts, run])
    return Table(
        f"Successes: texts whose loss per token the strongest attack raised by more than {threshold:.0%} of the clean "
        "loss that the model has on the whole text (its mean in the second column); excess is success - control, in "
        "percentage points. Of the search on each model alone: tokens replaced in a text on average, texts in which "
        "none was, and texts that are the same tokens when written and read again.",
        [
            *("model", "clean", "success", "interval", "control", "interval", "excess", "interval"),
            *("replaced", "unchanged", "read again", "run"),
        ],
        rows,
    )


def _search_table(name: str, results: FinalResults, findings: Findings) -> Table:
    rows = []
    for model, effect in findings.effects.items():
        controls = (effect.control_increase_nats_per_token, effect.blind_increase_nats_per_token)
        found = [NATS(increase.value) for increase in (*controls, *effect.budget_increases)]
        found += value_and_span(effect.search_minus_blind_nats_per_token, NATS)
        rank = findings.rank_correlation[model]
        rows.append([model, *found, "-" if rank is None else f"{rank:+.2f}", results.run_of(f"{name}-{model}")])
    return Table(
        "The search on each model alone, in nats per token, beside two controls: random tokens, and blind search at "
        "the same counted cost. What it found with shares of its budget, rounded up to whole steps; what the gradient "
        "adds to blind search (nothing: it misleads); and the rank correlation of the gradient's estimate with the "
        "exact effect among the candidates that were tried, which are those that it ranks highest.",
        [
            *("model", "random", "blind", *(f"{share:.0%}" for share in BUDGET_SHARES)),
            *("search - blind", "interval", "correlation", "run"),
        ],
        rows,
    )


def _difference_table(name: str, results: FinalResults, findings: Findings) -> Table:
    rates, rows = not findings.one_for_all, []
    for row in findings.differences:
        cells: list[str] = []
        for measure, estimate, form in (
            ("increase", row.increase_nats_per_token, NATS),
            *([("success rate", row.success_rate, rate_points)] if rates else []),
        ):
            adjusted = results.adjusted(f"{name} {measure}", row.model, row.reference)
            p = estimate.p_value if estimate else None
            cells += [*value_and_span(estimate, form), p_value(p), p_value(adjusted)]
        could = smallest(row.increase_nats_per_token)
        rows.append([f"{row.model} - {row.reference}", *cells, could, results.run_of("transfer")])
    tested = ["interval", "p", "adjusted"]
    about_p = ""
    if rates or findings.searches > 1:
        by = "p by exchanges within sources" if rates else "p"
        about_p = f" {by}, for one comparison, and {_adjusted(results)}; at the border an interval may disagree with p."
    return Table(
        "Differences between models of the increase under the strongest attack, in nats per token"
        + (", and of the success rate in percentage points" if rates else "")
        + f"; paired by document, {sampled(findings)}, one seed.{about_p} Last, {COULD_SHOW}, of "
        "the increase.",
        ["difference", "increase", *tested, *(["success", *tested] if rates else []), "could show", "run"],
        rows,
    )


def sampled(findings: Findings) -> str:
    """Says what the intervals of differences know of."""
    if not findings.one_for_all:
        return "sources resampled"
    if findings.searches < 2:
        return "sources resampled under one trigger, which says nothing about another: no p"
    return (
        f"mean over the {findings.searches} searches (restarts), by the strongest trigger of each on each model, and "
        "so not the difference of two rows above, which are under the strongest of all; intervals and p know of other "
        "searches and other sources (Student's t)"
    )


def _equal_loss_table(results: FinalResults, findings: Findings) -> Table:
    rows, run = [], results.run_of("transfer")
    for row, alone in zip(findings.at_equal_loss, findings.at_equal_loss_alone, strict=True):
        loss, increase = row.clean_loss_nats_per_token, findings.effects[row.model].increase_nats_per_token
        between = " and ".join(row.between) if row.covered else f"beyond {row.between[0]}"
        differences = value_and_span(row.increase_nats_per_token, NATS)
        differences += value_and_span(alone.increase_nats_per_token, NATS)
        rows.append([row.model, LOSS(loss), NATS(increase.value), between, *differences, run])
    return Table(
        "At equal clean loss: what the attack adds to each arm, less what it adds to the unconstrained model at the "
        "same clean loss, read off the line between two moments of its training (snapshots, base, baseline), in nats "
        f"per token, over {'searches and ' * findings.one_for_all}sources, not tested; last, with the search on each "
        "model alone. Where the two disagree, the difference is one between searches. Every loss that this is made "
        "from stands in the run's records.",
        ["arm", "clean", "increase", "between", "difference", "interval", "own search", "interval", "run"],
        rows,
    )


def _transfer_table(name: str, results: FinalResults) -> Table:
    """Rows: the model that the attack was found for; columns: the model that it was tried on."""
    matrix, run = getattr(results.transfer, name), results.run_of("transfer")
    return Table(
        "Transfer: what a search found for one model (row) tried on another (column); increase in nats per token.",
        ["found for", "search", *(f"on {model}" for model in matrix["gradient"]), "run"],
        [
            [found_for, search, *map(NATS, row.values()), run]
            for search, of_search in matrix.items()
            for found_for, row in of_search.items()
        ],
    )


def _trigger_table(results: FinalResults, findings: Findings) -> Table:
    rows: list[list[object]] = []
    for search, triggers in {"gradient": findings.triggers, "blind": findings.blind_triggers}.items():
        for model, trigger in triggers.items():
            rows += [[model, search, *cells, results.run_of(f"uat-{model}")] for cells in _restarts(trigger)]
    return Table(
        "Every restart of both searches: loss on the search documents in nats per token, clean and behind the "
        "trigger, and the trigger as token ids. The highest of a model is kept, and judged on other documents: as text "
        "(escapes stand for characters that do not show), and whether that is the same tokens when read again.",
        ["model", "search", "restart", "clean", "with trigger", "ids", "kept as", "same again", "run"],
        rows,
    )


def _restarts(trigger: Trigger) -> list[list[object]]:
    kept, rows = (Quoted(trigger.trigger_text), "yes" if trigger.trigger_round_trips else "no"), []
    best = max(trigger.restarts, key=lambda restart: restart.search_loss_nats_per_token)
    for number, restart in enumerate(trigger.restarts, 1):
        losses = map(LOSS, (trigger.search_loss_clean_nats_per_token, restart.search_loss_nats_per_token))
        ids = " ".join(map(str, restart.trigger_ids))
        rows.append([number, *losses, ids, *(kept if restart is best else ("-", "-"))])
    return rows


def order_tables(results: FinalResults) -> list[Table]:
    """The answer of every model for its worst sublayer; a proof holds for all inputs, the rest for those looked at."""
    found, run = results.order, results.run_of("order")
    scope = next(iter(found.values())).certificate.scope
    proofs, on_text = [], []
    for name, order in found.items():
        certificate, jacobian, rises = order.certificate, order.on_text.jacobian, order.on_text.rises
        falls = [one.worst_violation_found for one in certificate.sublayers]
        bounds = [one.worst_violation_bound for one in certificate.sublayers]
        told = [certificate.activation, certificate.certified, certificate.sublayers[0].method]
        proofs.append([name, *told, _steepest(falls), _steepest(bounds), COUNT(certificate.pairs_tried), run])
        shares = (jacobian.share, jacobian.share_of_size, rises.share, rises.share_of_size)
        on_text.append([name, *map("{:.2%}".format, shares), COUNT(order.on_text.inputs), run])
    return [
        Table(
            f"{scope[0].upper()}{scope[1:]}. Monotone: proved, refuted by a verified pair of inputs, or unknown. "
            "Steepest fall found: of an output, per unit of the rise of the inputs, and what it can be at most (- "
            "where no bound is known).",
            ["model", "activation", "monotone", "method", "falls by", "at most", "pairs tried", "run"],
            proofs,
        ),
        Table(
            f"The same at inputs that the first {DOCUMENTS} documents of the test split give: share of the Jacobian's "
            "entries below 0, and their share in its size; outputs that fall when inputs rise, and theirs.",
            ["model", "entries below 0", "of size", "outputs that fall", "of size", "inputs", "run"],
            on_text,
        ),
    ]


def _steepest(falls: Sequence[float | None]) -> str:
    """The steepest fall, without its sign; - where one is not known."""
    known = [fall for fall in falls if fall is not None]
    return f"{abs(min(known)):.2g}" if len(known) == len(falls) else "-"


def split_table(results: FinalResults) -> Table:
    rows = []
    for name, split in results.text.items():
        sizes = map(COUNT, (split.documents, split.sources, split.characters))
        rows.append([name, *sizes, split.digest[:12], results.run_of("setup")])
    return Table("The splits.", ["split", "documents", "sources", "characters", "digest", "run"], rows)
