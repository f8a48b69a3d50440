"""What must hold before any number of the study is shown: recomputed from the records, and from the text itself.

A result is what a stage says of itself. Whatever can be computed again from the rows that it kept is computed again,
and what does not agree is refused by name: what was measured, and what is required.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from storage.errors import CheckFailed, require, require_each_once, require_equal, require_limit
from tasks.attacks.configuration import BACKWARD_FORWARDS, BUDGET_SHARES
from tasks.attacks.effects import succeeded
from tasks.attacks.losses import summary
from tasks.language import foreign
from tasks.language.tokenizer import encode
from tasks.robustness.results import (
    EvaluateResult,
    HotFlipResult,
    ModelOrder,
    OrderResult,
    UatResult,
)
from tasks.robustness.stages import JUDGED
from tasks.stage.run import StageInput

Rows = list[dict[str, Any]]
ROUNDING = 1e-4
"""Relative: a loss in another batch differs by less."""
ROUNDING_OF = {"fp32": ROUNDING, "tf32": 0.02, "bf16": 0.02}
"""The same of a loss that was seen in this precision, beside its value in fp32."""


@dataclass(frozen=True)
class Document:
    """A document of the text as setup left it."""

    example_id: str
    source: str
    tokens: int


def documents(text: StageInput, split: str) -> dict[str, Document]:
    """The documents of a split by example id, in its order, with their lengths in tokens."""
    tokenizer = foreign.kept_tokenizer(text.path / "text" / "tokenizer")
    rows = pq.read_table(text.path / "text" / f"{split}.parquet").to_pylist()
    lengths = map(len, encode(tokenizer, (row["text"] for row in rows)))
    return {
        row["example_id"]: Document(row["example_id"], row["source"], length)
        for row, length in zip(rows, lengths, strict=True)
    }


def require_evaluation(
    found: EvaluateResult, rows: Rows, test: Mapping[str, Document], models: Collection[str]
) -> None:
    """Every model was scored on every token of every test document, and the result says what its records say.

    `models` are those that must be there; what was not trained may stand beside them.
    """
    missing = sorted(set(models) - found.models.keys())
    require(not missing, "evaluate scored every model of the study", f"not {', '.join(missing)}", sorted(models))
    require_equal("evaluate scored the test split", f"{found.documents} of {found.split}", f"{len(test)} of test")
    require_losses("evaluate", rows)
    for name, stated in found.models.items():
        own = [row for row in rows if row["model"] == name]
        scored = [(row["example_id"], row["source"], row["tokens_scored"]) for row in own]
        required = [(document.example_id, document.source, document.tokens) for document in test.values()]
        require_each_once(f"evaluate scored {name} on every token of the test split", scored, required)
        require_equal(f"what evaluate says of {name} follows from its records", stated, summary(rows, name))
    unknown = sorted({row["model"] for row in rows} - found.models.keys())
    require(not unknown, "evaluate's records are of its models", unknown, sorted(found.models))


def require_order(found: OrderResult, rows: Rows, models: list[str], variant: str) -> None:
    """Every model was asked about the sublayers that the study names, and the result says what its records say."""
    measured = f"{', '.join(found.models)}, {found.variant}"
    require_equal("order examined every model of the study", measured, f"{', '.join(models)}, {variant}")
    recorded = {row["model"]: ModelOrder.model_validate_json(row["order"]) for row in rows}
    follows = recorded == found.models
    require(follows, "what order says follows from its records", "another answer", "that of the records")
    for name, order in found.models.items():
        certificate = order.certificate
        tensors = sum(sublayer.tensors_checked for sublayer in certificate.sublayers)
        require(
            certificate.variant == variant and certificate.tensors_checked == tensors > 0,
            f"weights of {name} were looked at for its order",
            f"{certificate.tensors_checked} tensors ({certificate.variant}), {tensors} in its sublayers",
            f"those of {variant}, and more than none",
        )


def require_attack(
    attack: str, model: str, found: UatResult | HotFlipResult, rows: Rows, judged: Mapping[str, Document], given: Any
) -> None:
    """One model was attacked as configured, on documents of the split that no search has seen, and scored soundly.

    `given` is the attack's configuration. Tokens that an attacker wrote, or might have written, are never scored.
    """
    what = f"{attack} on {model}"
    measured = (found.model, found.split, {row["model"] for row in rows})
    require_equal(f"{what} is judged on {JUDGED}, and its records are of it", measured, (model, JUDGED, {model}))
    require_equal(f"{what} attacked as this study is configured", found.attack.scientific(), given.scientific())
    require_losses(what, rows)
    expected = list(judged.values())[: given.documents if isinstance(found, HotFlipResult) else None]
    attacked = [(row["example_id"], row["source"]) for row in rows]
    first = [(document.example_id, document.source) for document in expected]
    require_each_once(f"{what} attacked the documents of {JUDGED}", attacked, first)
    require_equal(f"the documents that {what} counted are its records", found.documents, len(rows))
    for row in rows:
        _require_own_tokens(what, row, min(judged[row["example_id"]].tokens, given.text_tokens))
    if isinstance(found, HotFlipResult):
        _require_flips(what, found, rows)
        _require_control(what, rows, given.control_draws)
    else:
        _require_triggers(what, found)
        _require_control(what, rows, given.control_triggers)
    forwards, backwards, blind = cost_of(found)
    require_equal(f"blind search spent as much as {what}", blind, forwards + BACKWARD_FORWARDS * backwards)


def _require_own_tokens(what: str, row: dict[str, Any], tokens: int) -> None:
    """Of a text of so many tokens: all but those that an attacker may write are scored, the same before and after."""
    written = row.get("writable", [])
    where = f"document {row['example_id']}"
    require(
        (row["text_tokens"], row["tokens_scored"] + len(written)) == (tokens, tokens),
        f"{what} scored the text's own tokens alone",
        f"{where}: {row['tokens_scored']} scored, {len(written)} open to the attacker, text of {row['text_tokens']}",
        f"together the {tokens} tokens of the text",
    )
    require(
        written or row["clean_loss_sum_nats"] == row["text_clean_loss_sum_nats"],
        f"{what} was compared with the clean loss of the same tokens",
        f"{where}: {row['clean_loss_sum_nats']} of the scored tokens, {row['text_clean_loss_sum_nats']} of all",
        "equal, all are scored",
    )
    shares = row["budget_losses_sum_nats"]
    require(
        len(shares) == len(BUDGET_SHARES) and math.isclose(shares[-1], row["loss_sum_nats"], rel_tol=1e-6),
        f"{what} kept what it had found at each share of its budget",
        f"{where}: {shares}",
        f"{len(BUDGET_SHARES)} losses, the last {row['loss_sum_nats']}",
    )


def _require_triggers(what: str, found: UatResult) -> None:
    for trigger in (found.gradient, found.blind):
        length = len(trigger.trigger_ids)
        require_equal(f"the trigger of {what} is as long as configured", length, found.attack.trigger_tokens)


def _require_flips(what: str, found: HotFlipResult, rows: Rows) -> None:
    for row in rows:
        where, tokens = f"document {row['example_id']}", row["text_tokens"]
        open_to_all = row["writable"]
        of_text = len(set(open_to_all)) == len(open_to_all) and set(open_to_all) <= set(range(tokens))
        places = f"{what}: positions open to the attacker are of the text, {where}"
        require(of_text, places, open_to_all, f"each of {tokens} once")
        require_limit(f"{what} scored at least half of the text, open in {where}", len(open_to_all), tokens // 2)
        for kind in ("positions", "blind_positions"):
            outside = sorted(set(row[kind]) - set(open_to_all))
            require(not outside, f"{what} wrote where it may write", f"{where}: {kind} {outside}", "none outside")
            allowed = min(found.attack.flips, tokens // 2)
            require_limit(f"{what} wrote as much as it may, {kind} in {where}", len(row[kind]), allowed)
            written = row[kind.replace("positions", "replacements")]
            require_equal(f"{what} kept a token for each of its {kind}, {where}", len(written), len(row[kind]))
        require_equal(f"the flips of {what} are counted in {where}", row["flips"], len(row["positions"]))
        success = succeeded(row, found.attack.success_relative_increase)
        follows = f"successes of {what} follow from the losses in its records, {where}"
        require_equal(follows, row["success"], success)
    for column in ("forward_sequences", "backward_sequences", "blind_forward_sequences", "flips", "round_trips"):
        total = sum(row[column] for row in rows)
        require_equal(f"{column} of {what} is the sum of its records'", getattr(found, column), total)


def _require_control(what: str, rows: Rows, draws: int) -> None:
    for row in rows:
        kept = f"every draw of the control of {what} is kept, document {row['example_id']}"
        require_equal(kept, len(row["control_losses_sum_nats"]), draws)


def require_comparable(attack: str, found: Mapping[str, Any], records: Mapping[str, Rows]) -> None:
    """Every model was attacked at the same counted cost, on the same tokens of the same documents."""
    reference = next(iter(found))
    costs = {model: cost_of(result) for model, result in found.items()}
    tokens = {model: {row["example_id"]: _scored(row) for row in rows} for model, rows in records.items()}
    for model in found:
        what = f"{attack} spent the same on every model, {model} as {reference}"
        require_equal(what, costs[model], costs[reference])
        differing = [id_ for id_, scored in tokens[model].items() if scored != tokens[reference][id_]]
        where = f"{differing[:1]}: {model} differs from {reference}"
        require(not differing, f"{attack} scored the same tokens for every model", where, "equal tokens")


def cost_of(found: UatResult | HotFlipResult) -> tuple[int, int, int]:
    """Forwards and backwards of the gradient search, and forwards of the blind one."""
    if isinstance(found, UatResult):
        gradient = found.gradient
        return (gradient.forward_sequences, gradient.backward_sequences, found.blind.forward_sequences)
    return (found.forward_sequences, found.backward_sequences, found.blind_forward_sequences)


def _scored(row: dict[str, Any]) -> tuple[int, tuple[int, ...]]:
    return row["tokens_scored"], tuple(row.get("writable", ()))


def require_losses(what: str, rows: Rows) -> None:
    """Every loss is a finite number and not below 0; that of some tokens of a text is not above that of all."""
    for row in rows:
        of = f"of {row['model']}, document {row['example_id']}"
        for column, value in row.items():
            numbers = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, float)]
            if not all(math.isfinite(number) for number in numbers):
                raise CheckFailed(f"every loss of {what} is a finite number", f"{column} {of}: {value}", "finite")
            if "loss" in column and any(number < 0 for number in numbers):
                raise CheckFailed(f"no loss of {what} is below 0", f"{column} {of}: {value}", "0 or more")
        require(row["tokens_scored"] > 0, f"{what} scored something of every document", f"0 tokens {of}", "1 or more")
        part, whole = (row.get(f"{name}clean_loss_sum_nats", 0.0) for name in ("", "text_"))
        no_more = f"in {what} the scored part of a text costs no more than the whole, {of}"
        require_limit(no_more, part, whole * (1 + ROUNDING))
