"""The study's report: its answer, and in which order the rest follows."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.findings.document import Document, Figure, Folded, Section
from tasks.findings.figures import forest
from tasks.findings.numbers import NATS, estimate, perplexity, span
from tasks.findings.table import Quoted, Table
from tasks.robustness.answer import Answered, effects, not_shown, numbers, seen, verdict
from tasks.robustness.arm import BASELINE, MONOTONIC
from tasks.robustness.attack_tables import attack_tables, ids_of, run_of
from tasks.robustness.attack_words import ATTACK_TITLES, attack_cautions, how_attacked, masked, unconverged
from tasks.robustness.attacked_texts import AttackedTexts
from tasks.robustness.final_results import FinalResults
from tasks.robustness.order_table import order_tables
from tasks.robustness.tables import (
    arm_table,
    cost_table,
    liveness_table,
    perplexity_tables,
    primary_table,
    secondary_table,
)
from tasks.robustness.words import (
    EARLIER_SYSTEM,
    LIMITS,
    QUESTION,
    about_order,
    alive,
    answered,
    cautions,
    could_be_seen,
    dead_layers,
    label,
    models,
    the_text,
    verified,
    what_was_studied,
    worse_than_frequencies,
)


def report(results: FinalResults, drawn: Mapping[str, Figure], attacked: Mapping[str, AttackedTexts]) -> Document:
    """A function of its arguments; `attacked` by attack."""
    given, attacks = answered(results), results.attacks.by_name()
    added = attacks[results.primary.primary.attack].effects[BASELINE].increase_nats_per_token.value
    return Document(
        f"{results.study}: are models with non-negative feed-forward weights harder to attack?",
        verdict(given),
        seen(given),
        [one for one in (numbers(given), *_other_numbers(results)) if one],
        answer_figure(given),
        [
            not_shown(given),
            *dead_layers(results.alive_shares),
            *worse_than_frequencies(results),
            *masked(results),
            *unconverged(attacks),
            *could_be_seen(results.primary, added),
            *(caution for caution in cautions(results) if caution.startswith("**")),
        ],
        f"{QUESTION} {what_was_studied(results)} {the_text(results)}",
        sections=[
            Section("The primary comparison", tables=[primary_table(results)]),
            Section(
                "Do the constrained layers live?", points=alive(results.alive_shares), tables=[liveness_table(results)]
            ),
            Section(
                "What the constraint costs",
                points=models(results),
                tables=perplexity_tables(results),
            ),
            *(_attack_section(name, results, drawn, attacked[name]) for name in attacks),
            Section("Are the layers monotone functions?", points=about_order(results), tables=order_tables(results)),
            Section("The secondary comparisons", tables=[secondary_table(results)]),
            Section(
                "Training",
                points=cautions(results),
                figures=[figure for name, figure in drawn.items() if name.startswith("training-")],
                tables=[arm_table(results), cost_table(results)],
            ),
            _checks_section(results),
            _text_section(results),
            Section("Limits", points=[*attack_cautions(results), *LIMITS, EARLIER_SYSTEM]),
        ],
    )


def answer_figure(given: Answered) -> Figure | None:
    """The difference that answers beside its margin, and on what it hangs; None where nothing of it is known."""
    rows, found = effects(given), given.primary
    if not rows:
        return None
    margin = found.primary.margin_nats_per_token
    caption = (
        f"What {found.primary.attack} adds to the loss of the first model, less what it adds to that of the second: "
        "left of the line the first is harder to attack. Grey: differences too small to matter here, by the margin "
        f"of {margin:g} that was set before. Each interval is for one comparison."
    )
    return forest("answer", caption, rows, "difference (nats per token)", NATS, band=(-margin, margin))


def _other_numbers(results: FinalResults) -> list[str]:
    """What the constraint costs on clean text, and the same difference under the other attack."""
    (clean,) = [row for row in results.differences if (row.model, row.reference) == (MONOTONIC, BASELINE)]
    interval = span(clean.interval_nats_per_token, NATS)
    found = [
        f"test loss, monotonic - baseline: {NATS(clean.difference_nats_per_token)} nats per token (interval {interval})"
    ]
    for name, findings in results.attacks.by_name().items():
        (row,) = [row for row in findings.differences if (row.model, row.reference) == (MONOTONIC, BASELINE)]
        if name != results.primary.primary.attack:
            found.append(f"{name}, monotonic - baseline: {estimate(row.increase_nats_per_token, NATS)} nats per token")
    return found


def _attack_section(name: str, results: FinalResults, drawn: Mapping[str, Figure], attacked: AttackedTexts) -> Section:
    tables = attack_tables(name, results)
    if name == "uat":
        tables += [_trigger_table(results), _restart_table(results)]
    kinds = ("equal-loss", "strength", "effects")
    figures = [drawn[f"{kind}-{name}"] for kind in kinds]
    return Section(
        ATTACK_TITLES[name],
        texts=[how_attacked(name, results), attacked.how],
        figures=figures,
        excerpts=attacked.shown,
        tables=tables,
        details=attacked.folded,
    )


def _trigger_table(results: FinalResults) -> Table:
    return Table(
        "The triggers of every search as text (escapes stand for characters that do not show) and as token ids.",
        ["model", "search", "trigger", "ids", "same tokens when read again", "run"],
        [
            [
                label(results, model),
                search,
                Quoted(trigger.trigger_text),
                ids_of(trigger),
                "yes" if trigger.trigger_round_trips else "no",
                run_of(results, f"uat-{model}"),
            ]
            for search, triggers in {
                "gradient": results.attacks.uat.triggers,
                "blind": results.attacks.uat.blind_triggers,
            }.items()
            for model, trigger in triggers.items()
        ],
    )


def _restart_table(results: FinalResults) -> Table:
    return Table(
        "Every restart of the search: loss on the search documents in nats per token. The highest of a model is kept; "
        "it is judged on other documents.",
        ["model", "restart", "clean", "with trigger", "ids", "run"],
        [
            [
                label(results, model),
                number,
                f"{trigger.search_loss_clean_nats_per_token:.4f}",
                f"{restart.search_loss_nats_per_token:.4f}",
                ids_of(restart),
                run_of(results, f"uat-{model}"),
            ]
            for model, trigger in results.attacks.uat.triggers.items()
            for number, restart in enumerate(trigger.restarts, 1)
        ],
    )


def _checks_section(results: FinalResults) -> Section:
    base, check = results.base, results.base.trained_check
    perplexities = check.validation_perplexity
    return Section(
        "What was verified",
        texts=[
            verified(results),
            "Weights were read from the effective weight of every layer that the variant names, after training. That "
            "all arms had distinct weights, that each model was attacked at the same counted cost on the same tokens "
            "of documents which no search had seen, and that losses, costs and successes follow from the records was "
            "computed again before this page was written.",
            results.audit.in_words,
        ],
        tables=[
            Table(
                f"That the base model ({base.source}) is a trained one: its validation perplexity "
                f"({perplexity(perplexities['base'])}) as a multiple of that of what it is compared with.",
                ["compared with", "perplexity", "base / this", "required at most", "run"],
                [
                    [
                        reference,
                        perplexity(perplexities[reference]),
                        f"{check.ratio_of_perplexities[reference]:.4f}",
                        f"{limit:g}",
                        run_of(results, "base"),
                    ]
                    for reference, limit in check.required_ratio.items()
                ],
            )
        ],
        details=[Folded("The layers that were checked", "\n".join(_layers(results)))],
    )


def _layers(results: FinalResults) -> list[str]:
    """The constrained layers: the same in every arm that has any."""
    return next((arm.constraint.layers for arm in results.arms.values() if arm.constraint), [])


def _text_section(results: FinalResults) -> Section:
    proof = results.text_proof
    bad, of_files = sum(proof.skipped_rows.values()), len(proof.skipped_rows)
    skipped = f" {bad:,} rows of {of_files:,} files could not be read and were left out (text.skip_bad_rows)." * bool(
        bad
    )
    return Section(
        "The text and its splits",
        texts=[
            the_text(results),
            f"{proof.duplicates_dropped_documents:,} documents were dropped as duplicates, and "
            f"{proof.contaminated_dropped_documents:,} train documents because they shared too much with an "
            "evaluation split. Counted again afterwards: no two splits share a document or a source, and no train "
            f"document has more than {proof.largest_shared_shingles:.1%} of its word sequences in an evaluation "
            f"split.{skipped}",
        ],
        tables=[
            Table(
                "The splits.",
                ["split", "documents", "sources", "characters", "digest", "run"],
                [
                    [
                        name,
                        f"{split.documents:,}",
                        f"{split.sources:,}",
                        f"{split.characters:,}",
                        split.digest[:12],
                        run_of(results, "setup"),
                    ]
                    for name, split in results.text.items()
                ],
            )
        ],
    )
