"""`experiment_summary.txt`: the study for an email, as plain text that one screen or two hold."""

from __future__ import annotations

from tasks.report.cautions import plain
from tasks.report.numbers import NATS, estimate, perplexity, texts_of
from tasks.report.plain_text import columns, paragraph, points
from tasks.robustness.arm import BASELINE, MONOTONIC
from tasks.robustness.attack_words import STRONGEST
from tasks.robustness.final_results import FinalResults
from tasks.robustness.words import QUESTION, cautions, dead_arms, first_lines, the_text, what_was_studied


def summary(results: FinalResults) -> str:
    """The answer, what was studied, the main numbers with intervals, what to keep in mind, and where the rest is."""
    blocks = [
        f"{results.study}, seed {results.seeds[0]}",
        *(paragraph(plain(sentence)) for sentence in first_lines(results)),
        paragraph(f"{QUESTION} {what_was_studied(results)} {plain(the_text(results))}"),
        _arms(results),
        _differences(results),
        "TO KEEP IN MIND\n\n" + points([plain(caution) for caution in cautions(results)]),
        paragraph(
            "Beside this file: report.html (opens in any browser, needs no network: every table, what the words mean, "
            "limits, attacked texts, the run directory of each number), attempts.html (when and where each stage ran), "
            "table.md, figures/, and final_results.json with every number."
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _arms(results: FinalResults) -> str:
    attacks, dead = results.attacks.by_name(), dead_arms(results)
    strongest = "; ".join(
        f"{name}, {texts_of(found.documents, found.effects[BASELINE].sources)}: {STRONGEST[name]}"
        for name, found in attacks.items()
    )
    rows = [
        [
            f"{name} (dead)" if name in dead else name,
            f"{arm.alive_share:.0%}",
            perplexity(results.models[name].perplexity),
            *(NATS(findings.effects[name].increase_nats_per_token.value) for findings in attacks.values()),
        ]
        for name, arm in results.arms.items()
    ]
    return f"{columns(['arm', 'alive', 'perplexity', *attacks], rows)}\n\n" + paragraph(
        "Alive: what the constrained layers do, as a share of what they do in the baseline. Perplexity on the test "
        f"split. Then what each attack adds to the loss, in nats per token. {strongest}."
    )


def _differences(results: FinalResults) -> str:
    """What the constraint changes, the primary comparison among it."""
    (clean,) = [row for row in results.differences if (row.model, row.reference) == (MONOTONIC, BASELINE)]
    low, high = clean.interval_nats_per_token
    said = [f"loss on clean text {NATS(clean.difference_nats_per_token)} (interval {NATS(low)} to {NATS(high)})"]
    for name, findings in results.attacks.by_name().items():
        (row,) = [row for row in findings.differences if (row.model, row.reference) == (MONOTONIC, BASELINE)]
        matched = {row.model: row for row in findings.at_equal_loss}[MONOTONIC].increase_nats_per_token
        at_equal_loss = estimate(matched, NATS) if matched else "not known"
        said.append(f"{name} adds {estimate(row.increase_nats_per_token, NATS)}; at equal clean loss {at_equal_loss}")
    return f"MONOTONIC - BASELINE, nats per token, {clean.confidence_level:.0%} intervals\n\n{points(said)}"
