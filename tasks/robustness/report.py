"""The study's report: its answer, and in which order the rest follows."""

from collections.abc import Mapping
from dataclasses import replace

from tasks.attacks.answer import answer_figure, numbers, told
from tasks.findings.document import Document, Figure, Folded, Section
from tasks.findings.gates import checked_section
from tasks.findings.numbers import NATS, estimate, span
from tasks.monotonic.arm import BASELINE, MONOTONIC
from tasks.robustness import tables, words
from tasks.robustness.attacked_texts import HOW, AttackedTexts
from tasks.robustness.final_results import FinalResults


def report(results: FinalResults, drawn: Mapping[str, Figure], attacked: Mapping[str, AttackedTexts]) -> Document:
    """A function of its arguments; `attacked` by attack."""
    given, attacks = words.answered(results), results.attacks
    answer = told(given)
    added = attacks[results.primary.primary.attack].effects[BASELINE].increase_nats_per_token.value
    return Document(
        f"{results.study}: are models with non-negative feed-forward weights harder to attack?",
        answer.verdict,
        answer.lead,
        [*numbers(given), *_other_numbers(results)],
        answer_figure(given),
        [
            answer.not_shown,
            *words.dead_layers(results.alive_shares),
            *words.collapsed(results.arms),
            *words.worse_than_frequencies(results),
            *words.masked(attacks),
            *words.unconverged(attacks),
            *words.rounded(results),
            *words.could_be_seen(results.primary, added),
            *words.cautions(results),
        ],
        f"{words.QUESTION} {words.model_and_text(results)}, seed {results.seeds[0]}. One seed: differences describe "
        f"these trainings and rank nothing. {words.the_text(results)}",
        sections=tables.dead_marked(
            [
                Section("The primary comparison", tables=[tables.primary_table(results, given)]),
                Section(
                    "Do the constrained layers live?",
                    points=words.alive(
                        {arm: share for arm, share in results.alive_shares.items() if arm not in results.dead_arms}
                    ),
                    tables=[tables.liveness_table(results)],
                ),
                Section("What the constraint costs", points=words.models(results), tables=tables.loss_tables(results)),
                *(_attack_section(name, results, drawn, attacked[name]) for name in attacks),
                Section(
                    "Are the layers monotone functions?",
                    points=words.about_order(results),
                    tables=tables.order_tables(results),
                ),
                Section(
                    "Training",
                    texts=[words.same_budget(results)],
                    figures=[figure for name, figure in drawn.items() if name.startswith("training-")],
                ),
                _checks_section(results),
                _text_section(results),
                Section("Limits", points=[*words.attack_cautions(results), *words.LIMITS]),
            ],
            results.dead_arms,
        ),
    )


def _other_numbers(results: FinalResults) -> list[str]:
    """Cost of the constraint on clean text, and the same difference under the other attack."""
    (clean,) = [row for row in results.differences if (row.model, row.reference) == (MONOTONIC, BASELINE)]
    value, interval = NATS(clean.difference_nats_per_token), span(clean.interval_nats_per_token, NATS)
    found = {
        name: findings.difference(MONOTONIC, BASELINE).increase_nats_per_token
        for name, findings in results.attacks.items()
        if name != results.primary.primary.attack
    }
    return [
        f"test loss, monotonic - baseline: {value} nats per token (interval {interval})",
        *(f"{name}, monotonic - baseline: {estimate(row, NATS)} nats per token" for name, row in found.items()),
    ]


def _attack_section(name: str, results: FinalResults, drawn: Mapping[str, Figure], attacked: AttackedTexts) -> Section:
    return Section(
        words.ATTACK_TITLES[name],
        texts=[words.how_attacked(results.attacks[name], results), HOW],
        figures=[drawn[f"{kind}-{name}"] for kind in ("equal-loss", "strength", "effects")],
        excerpts=attacked.shown,
        tables=tables.attack_tables(name, results),
        details=attacked.folded,
    )


def _checks_section(results: FinalResults) -> Section:
    constrained = next((arm.constraint.layers for arm in results.arms.values() if arm.constraint), [])
    checked = checked_section(results.gates, results.audit)
    return replace(checked, details=[Folded("The layers whose signs were checked", "\n".join(constrained))])


def _text_section(results: FinalResults) -> Section:
    proof = results.text_proof
    bad, of_files = sum(proof.skipped_rows.values()), len(proof.skipped_rows)
    skipped = f" {bad:,} rows of {of_files:,} files could not be read and were left out (text.skip_bad_rows)."
    return Section(
        "The text and its splits",
        texts=[
            f"{proof.duplicates_dropped_documents:,} documents were dropped as duplicates, and "
            f"{proof.contaminated_dropped_documents:,} train documents because they shared too much with an "
            "evaluation split. Counted again afterwards: no two splits share a document or a source, and no train "
            f"document has more than {proof.largest_shared_shingles:.1%} of its word sequences in an evaluation "
            f"split.{skipped * bool(bad)}"
        ],
        tables=[tables.split_table(results)],
    )
