"""That transfer tried everything on every model, on the tokens of the attacks, and says what its records say.

By the records of transfer models are compared, so these must be those of the attacks where both say the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from storage.errors import require, require_close, require_each_once, require_equal
from tasks.robustness.checks import ROUNDING, ROUNDING_OF, Document, require_losses
from tasks.robustness.results import Transferred, TransferResult, Trigger, UatResult
from tasks.robustness.stages import JUDGED, SEARCHED

Rows = list[dict[str, Any]]
LOSS_OF = {"gradient": "loss_sum_nats", "blind": "blind_loss_sum_nats"}
"""Search -> where a record of an attack keeps the loss that it led to."""
WRITTEN_BY = {"gradient": "positions", "blind": "blind_positions"}
"""Search -> where a record of hotflip keeps what it replaced."""


def require_transfer(
    found: TransferResult,
    rows: Rows,
    own: Mapping[str, Mapping[str, Rows]],
    uat: Mapping[str, UatResult],
    searched: Sequence[Document],
) -> None:
    """`own` are the records of each attack and model; `searched` the documents of attack-search."""
    require_losses("transfer", rows)
    tried: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        tried[row["attack"], row["split"], row["search"], row["found_for"], row["model"]].append(row)
    length = next(iter(uat.values())).attack.text_tokens
    of_search = {one.example_id: (one.source, min(one.tokens, length)) for one in searched}
    for attack, split, matrix in (
        ("uat", SEARCHED, found.uat_on_search),
        ("uat", JUDGED, found.uat),
        ("hotflip", JUDGED, found.hotflip),
    ):
        models = list(own[attack])
        everything = {search: {model: models for model in models} for search in LOSS_OF}
        require_equal(f"transfer tried {attack} of every model on every model", _shape(matrix), everything)
        clean: dict[str, dict[str, float]] = {}
        for search, found_for in product(LOSS_OF, models):
            of_models: dict[str, Rows] = {}
            for model in models:
                what = f"transfer of {attack} ({search} search) from {found_for} to {model} on {split}"
                of_pair = of_models[model] = tried.pop((attack, split, search, found_for, model), [])
                if split == SEARCHED:
                    _require_documents(what, of_pair, of_search)
                    _require_one_clean_loss(what, of_pair, clean.setdefault(model, {}))
                else:
                    attacked = {row["example_id"]: row for row in own[attack][model]}
                    scored = {id_: (row["source"], row["tokens_scored"]) for id_, row in attacked.items()}
                    _require_documents(what, of_pair, scored)
                    _require_own(what, of_pair, attacked, LOSS_OF[search] if found_for == model else None)
                _require_increase(what, matrix[search][found_for][model], of_pair)
            if split == SEARCHED:
                _require_as_searched(search, found_for, uat[found_for], matrix[search][found_for][found_for])
            written = attack == "uat" or any(row[WRITTEN_BY[search]] for row in own[attack][found_for])
            if written:
                _require_read(f"{attack} ({search} search) on {found_for}", found_for, of_models)
    for model, result in uat.items():
        for search in LOSS_OF:
            _require_restarts(search, model, result, tried, own["uat"], of_search)
    require(not tried, "transfer tried the attacks of the study", f"also {', '.join(map(str, tried))}", "no others")


def _require_restarts(
    search: str,
    found_for: str,
    found: UatResult,
    tried: dict[tuple[str, ...], Rows],
    own: Mapping[str, Rows],
    of_search: Mapping[str, tuple[str, int]],
) -> None:
    """What was not kept was tried as what was; takes its rows out of `tried`."""
    trigger: Trigger = getattr(found, search)
    for name, restart in zip(trigger.named(), trigger.restarts, strict=True):
        for model, split in product(own if name != "uat" else (), (SEARCHED, JUDGED)):
            what = f"transfer of {name} ({search} search) from {found_for} to {model} on {split}"
            rows = tried.pop((name, split, search, found_for, model), [])
            if split == JUDGED:
                attacked = {row["example_id"]: row for row in own[model]}
                scored = {id_: (row["source"], row["tokens_scored"]) for id_, row in attacked.items()}
                _require_documents(what, rows, scored)
                _require_own(what, rows, attacked, None)
                continue
            _require_documents(what, rows, of_search)
            if model == found_for:
                seen = restart.search_loss_nats_per_token - trigger.search_loss_clean_nats_per_token
                rounding = ROUNDING_OF[found.attack.search_precision] * restart.search_loss_nats_per_token
                _require_increase(what, seen, rows, rounding)


def _shape(matrix: Transferred) -> dict[str, dict[str, list[str]]]:
    """Who was tried on whom."""
    return {search: {model: list(row) for model, row in of.items()} for search, of in matrix.items()}


def _require_documents(what: str, rows: Rows, expected: Mapping[str, tuple[str, int]]) -> None:
    scored = ((row["example_id"], row["source"], row["tokens_scored"]) for row in rows)
    required = ((id_, source, tokens) for id_, (source, tokens) in expected.items())
    require_each_once(f"{what} scored the same tokens as the attack", scored, required)


def _require_own(what: str, rows: Rows, attacked: Mapping[str, dict[str, Any]], loss: str | None) -> None:
    """The clean loss is that of the attack's records; so is the attacked one (column `loss`) on the attack's model."""
    columns = {"clean_loss_sum_nats": "clean_loss_sum_nats", "text_clean_loss_sum_nats": "text_clean_loss_sum_nats"}
    columns |= {"loss_sum_nats": loss} if loss else {}
    for row in rows:
        for column, theirs in columns.items():
            expected, few = attacked[row["example_id"]][theirs], ROUNDING * row["tokens_scored"]
            same = f"{what} measured what the attack measured, {column} of document {row['example_id']}"
            require_close(same, row[column], expected, max(few, ROUNDING * expected))


def _require_one_clean_loss(what: str, rows: Rows, known: dict[str, float]) -> None:
    """A text has one clean loss, whatever is tried on it beside; `known`: document -> the one that was seen first."""
    for row in rows:
        clean = known.setdefault(row["example_id"], row["clean_loss_sum_nats"])
        same = f"{what} compares with one clean loss of each text, document {row['example_id']}"
        require_close(same, row["clean_loss_sum_nats"], clean, ROUNDING * clean)


def _require_as_searched(search: str, model: str, found: UatResult, said: float) -> None:
    """A trigger does on attack-search to its own model what its search saw there: by this the strongest is chosen."""
    trigger = found.gradient if search == "gradient" else found.blind
    seen = trigger.search_loss_nats_per_token - trigger.search_loss_clean_nats_per_token
    rounding = ROUNDING_OF[found.attack.search_precision] * trigger.search_loss_nats_per_token
    require_close(f"the trigger of the {search} search on {model} does on {SEARCHED} what it saw", said, seen, rounding)


def _require_read(what: str, found_for: str, of_models: Mapping[str, Rows]) -> None:
    """What was written was read by some model that it was not found for."""
    others = [row for model, rows in of_models.items() if model != found_for for row in rows]
    require(
        any(row["loss_sum_nats"] != row["clean_loss_sum_nats"] for row in others),
        f"other models read what {what} wrote",
        f"the clean loss on all {len(others)} texts, in every bit",
        "another on one of them",
        "Find what leaves out the prefix or the flips in transfer: no number of this attack means anything",
    )


def _require_increase(what: str, said: float, rows: Rows, rounding: float = 1e-9) -> None:
    risen = math.fsum(row["loss_sum_nats"] - row["clean_loss_sum_nats"] for row in rows)
    computed = risen / sum(row["tokens_scored"] for row in rows)
    require_close(f"{what} follows from the records", said, computed, max(rounding, ROUNDING * abs(computed)))
