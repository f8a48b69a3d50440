"""What stands in `report.html`, and in which order: results, attacks, trainings, checks, limits, provenance."""

from __future__ import annotations

import json
from typing import Any

from storage import durable
from tasks.report.page import Figure, Section, page
from tasks.report.table import Table
from tasks.robustness.tables import (
    arm_table,
    attack_tables,
    cost_table,
    ids_of,
    perplexity_tables,
    run_of,
    shown,
)
from tasks.robustness.words import (
    ATTACK_TITLES,
    LIMITS,
    QUESTION,
    attack_cautions,
    cautions,
    facts,
    how_attacked,
    models,
    perplexity,
    the_text,
    verified,
    what_was_studied,
)

SHOWN_FILES = 20
"""More files than these are told by their number and one digest."""


def report(results: dict[str, Any], drawn: dict[str, Figure], sources: dict[str, dict[str, Any]]) -> str:
    """The report as one HTML page; a function of its arguments."""
    sections = [
        Section(
            "Perplexity on the test split",
            points=models(results),
            figures=[drawn["differences-test"]],
            tables=perplexity_tables(results),
        ),
        *(_attack_section(name, results, drawn) for name in results["attacks"]),
        Section(
            "Training",
            points=[said.replace("**", "") for said in cautions(results)],
            figures=[figure for name, figure in drawn.items() if name.startswith("training-")],
            tables=[arm_table(results), cost_table(results)],
        ),
        _checks_section(results),
        _text_section(results),
        Section("Limits", points=[*attack_cautions(results), *LIMITS]),
        _provenance_section(results, sources),
    ]
    title = f"{results['study']}: non-negative feed-forward weights under two attacks"
    return page(title, f"{QUESTION} {what_was_studied(results)}", facts(results), sections)


def _attack_section(name: str, results: dict[str, Any], drawn: dict[str, Figure]) -> Section:
    tables = attack_tables(name, results)
    if name == "uat":
        tables += [_trigger_table(results), _restart_table(results)]
    figures = [drawn[f"{kind}-{name}"] for kind in ("losses", "effects", "differences")]
    return Section(ATTACK_TITLES[name], texts=[how_attacked(name, results)], figures=figures, tables=tables)


def _trigger_table(results: dict[str, Any]) -> Table:
    return Table(
        "The triggers as text (escapes stand for characters that do not show) and as token ids.",
        ["model", "trigger", "ids", "same tokens when read again", "run"],
        [
            [
                model,
                shown(found),
                ids_of(found),
                "yes" if found["trigger_round_trips"] else "no",
                run_of(results, "uat"),
            ]
            for model, found in results["attacks"]["uat"]["models"].items()
        ],
    )


def _restart_table(results: dict[str, Any]) -> Table:
    return Table(
        "Every restart of the search: loss on the search documents in nats per token. The highest of a model is kept; "
        "it is judged on other documents.",
        ["model", "restart", "clean", "with trigger", "ids", "run"],
        [
            [
                model,
                number,
                f"{found['search_loss_clean_nats_per_token']:.4f}",
                f"{restart['search_loss_nats_per_token']:.4f}",
                ids_of(restart),
                run_of(results, "uat"),
            ]
            for model, found in results["attacks"]["uat"]["models"].items()
            for number, restart in enumerate(found["restarts"], 1)
        ],
    )


def _checks_section(results: dict[str, Any]) -> Section:
    base, names = results["base"], results["constraint"]["layers"]
    checked = base["trained_check"]
    perplexities = checked["validation_perplexity"]
    return Section(
        "What was verified",
        texts=[
            verified(results),
            "Weights were read from the effective weight of every layer that the variant names, after training. That "
            "both arms had distinct weights, that each model was attacked at the same counted cost on the same "
            "documents, and that successes follow from the recorded losses was checked before this page was written.",
        ],
        tables=[
            Table(
                f"That the base model ({base['source']}) is a trained one: its validation perplexity "
                f"({perplexity(perplexities['base'])}) as a multiple of that of what it is compared with.",
                ["compared with", "perplexity", "base / this", "required at most", "run"],
                [
                    [
                        reference,
                        perplexity(perplexities[reference]),
                        f"{checked['ratio_of_perplexities'][reference]:.4f}",
                        f"{limit:g}",
                        run_of(results, "base"),
                    ]
                    for reference, limit in checked["required_ratio"].items()
                ],
            )
        ],
        details=(("The layers that were checked", "\n".join(names)),),
    )


def _text_section(results: dict[str, Any]) -> Section:
    proof = results["text_proof"]
    return Section(
        "The text and its splits",
        texts=[
            the_text(results),
            f"{proof['duplicates_dropped_documents']:,} documents were dropped as duplicates, and "
            f"{proof['contaminated_dropped_documents']:,} train documents because they shared too much with an "
            "evaluation split. Counted again afterwards: no two splits share a document or a source, and no train "
            f"document has more than {proof['largest_shared_shingles']:.1%} of its word sequences in an evaluation "
            "split.",
        ],
        tables=[
            Table(
                "The splits.",
                ["split", "documents", "sources", "characters", "digest", "run"],
                [
                    [
                        name,
                        f"{split['documents']:,}",
                        f"{split['sources']:,}",
                        f"{split['characters']:,}",
                        split["digest"][:12],
                        run_of(results, "setup"),
                    ]
                    for name, split in results["text"].items()
                ],
            )
        ],
    )


def _provenance_section(results: dict[str, Any], sources: dict[str, dict[str, Any]]) -> Section:
    return Section(
        "Provenance",
        texts=[
            "Every row of numbers ends with the name of the run directory that they came from. Before "
            "anything was computed, every byte of these runs was hashed and compared with its marker."
        ],
        tables=[
            Table(
                "Run directories below the root of all runs, and what the stages read and wrote.",
                ["stage", "run directory", "version", "outputs digest", "commit", "uncommitted changes"],
                [
                    [
                        stage,
                        place,
                        results["provenance"][stage]["stage_version"],
                        results["provenance"][stage]["outputs_digest"][:12],
                        (sources[stage]["source"].get("commit") or "unknown")[:12],
                        (sources[stage]["source"].get("dirty_digest") or "none")[:12],
                    ]
                    for stage, place in results["runs"].items()
                ],
            ),
            Table(
                "What the stages read from outside: packages by version, files by digest.",
                ["stage", "key", "name", "version or digest"],
                [
                    [stage, key, *named]
                    for stage, found in results["provenance"].items()
                    for key, read in found["external"].items()
                    for listed in read.values()
                    for named in _named(listed)
                ],
            ),
            _by_stage(
                "Numerics of every stage: on what the bits of a result depend beside configuration and data.",
                {stage: found["numerics"] for stage, found in results["provenance"].items()},
            ),
            _by_stage(
                "Versions, as the attempt recorded them that finished the stage.",
                {stage: found["versions"] for stage, found in sources.items()},
            ),
        ],
        details=(
            (
                "Fingerprints and digests in full",
                json.dumps(
                    {
                        stage: {key: found[key] for key in ("fingerprint", "outputs_digest")}
                        | {"source": sources[stage]["source"]}
                        for stage, found in results["provenance"].items()
                    },
                    indent=2,
                ),
            ),
            ("The configuration of the study", json.dumps(results["configuration"], indent=2, ensure_ascii=False)),
        ),
    )


def _named(listed: Any) -> list[list[str]]:
    """Name and version or digest of each package or file; many files as one digest over all."""
    pairs = [entry.split("==") for entry in listed] if isinstance(listed, list) else sorted(listed.items())
    if len(pairs) > SHOWN_FILES:
        return [[f"{len(pairs):,} files", durable.sha256_json(listed)[:12]]]
    return [[name, version[:12]] for name, version in pairs]


def _by_stage(caption: str, found: dict[str, dict[str, Any]]) -> Table:
    """One row for each key, with the stages that have the same value together; those without it are not named."""
    rows = []
    for key in dict.fromkeys(key for values in found.values() for key in values):
        stages: dict[str, list[str]] = {}
        for stage, values in found.items():
            if key in values:
                stages.setdefault(str(values[key]), []).append(stage)
        for said, of in stages.items():
            rows.append([key.replace("_", " "), said, "all stages" if len(of) == len(found) else ", ".join(of)])
    return Table(caption, ["what", "value", "stages"], rows)
