"""That transfer tried everything on every model, on the tokens of the attacks, and says what its records say.

By the records of transfer models are compared, so these must be those of the attacks where both say the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from storage.errors import CheckFailed
from tasks.robustness.checks import Document, require_finite
from tasks.robustness.results import Transferred, TransferResult
from tasks.robustness.stages import JUDGED, SEARCHED

Rows = list[dict[str, Any]]
SEARCHES = {"gradient": "loss_sum_nats", "blind": "blind_loss_sum_nats"}
"""Search -> where a record of an attack keeps the loss that it led to."""
ROUNDING = 1e-4
"""Relative: a loss in another batch differs by less."""


def require_transfer(
    found: TransferResult,
    rows: Rows,
    own: Mapping[str, Mapping[str, Rows]],
    searched: Sequence[Document],
    trigger_text_tokens: int,
) -> None:
    """`own` are the records of each attack and model; `searched` the documents of attack-search."""
    require_finite("transfer", rows)
    tried: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        tried[row["attack"], row["split"], row["search"], row["found_for"], row["model"]].append(row)
    of_search = {one.example_id: (one.source, min(one.tokens, trigger_text_tokens)) for one in searched}
    for attack, split, matrix in (
        ("uat", SEARCHED, found.uat_on_search),
        ("uat", JUDGED, found.uat),
        ("hotflip", JUDGED, found.hotflip),
    ):
        models = list(own[attack])
        if _shape(matrix) != {search: {model: models for model in models} for search in SEARCHES}:
            raise CheckFailed(f"transfer tried {attack} of every model on every model", _shape(matrix), models)
        for search, found_for, model in product(SEARCHES, models, models):
            what = f"transfer of {attack} ({search} search) from {found_for} to {model} on {split}"
            rows = tried.pop((attack, split, search, found_for, model), [])
            if split == SEARCHED:
                _require_documents(what, rows, of_search)
            else:
                attacked = {row["example_id"]: row for row in own[attack][model]}
                _require_documents(
                    what, rows, {id_: (row["source"], row["tokens_scored"]) for id_, row in attacked.items()}
                )
                _require_own(what, rows, attacked, SEARCHES[search] if found_for == model else None)
            _require_increase(what, matrix[search][found_for][model], rows)
    if tried:
        raise CheckFailed("transfer tried the attacks of the study", f"also {', '.join(map(str, tried))}", "no others")


def _shape(matrix: Transferred) -> dict[str, dict[str, list[str]]]:
    """Who was tried on whom."""
    return {search: {model: list(row) for model, row in of.items()} for search, of in matrix.items()}


def _require_documents(what: str, rows: Rows, expected: Mapping[str, tuple[str, int]]) -> None:
    if sorted((row["example_id"], row["source"], row["tokens_scored"]) for row in rows) != sorted(
        (id_, source, tokens) for id_, (source, tokens) in expected.items()
    ):
        raise CheckFailed(
            f"{what} scored the same tokens as the attack", f"others, in {len(rows)} records", f"{len(expected)} texts"
        )


def _require_own(what: str, rows: Rows, attacked: Mapping[str, dict[str, Any]], loss: str | None) -> None:
    """The clean loss is that of the attack's records; so is the attacked one (column `loss`) on the attack's model."""
    columns = {"clean_loss_sum_nats": "clean_loss_sum_nats", "text_clean_loss_sum_nats": "text_clean_loss_sum_nats"}
    columns |= {"loss_sum_nats": loss} if loss else {}
    for row in rows:
        for column, theirs in columns.items():
            if not math.isclose(row[column], attacked[row["example_id"]][theirs], rel_tol=ROUNDING):
                raise CheckFailed(
                    f"{what} measured what the attack measured",
                    f"document {row['example_id']}: {column} is {row[column]}",
                    f"{attacked[row['example_id']][theirs]}",
                )


def _require_increase(what: str, said: float, rows: Rows) -> None:
    risen = math.fsum(row["loss_sum_nats"] - row["clean_loss_sum_nats"] for row in rows)
    computed = risen / sum(row["tokens_scored"] for row in rows)
    if not math.isclose(said, computed, rel_tol=ROUNDING, abs_tol=1e-9):
        raise CheckFailed(f"{what} follows from the records", said, computed)
