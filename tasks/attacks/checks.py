"""Checks of attacks before any number of theirs is shown: recomputed from the records, and from the text.

A search's cost, and its number of restarts and iterations, follow from the configuration and the text alone. Models
are compared by the records of transfer, so these must be those of the attacks where both say the same.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from storage.errors import require, require_close, require_each_once, require_equal, require_limit
from storage.records import Rows
from tasks.attacks.configuration import BACKWARD_FORWARDS, BUDGET_SHARES, FlipAttack, Search, TriggerAttack, steps_after
from tasks.attacks.results import HotFlipResult, Transferred, TransferResult, Trigger, UatResult
from tasks.attacks.stages import JUDGED, SEARCHED
from tasks.language.checks import ROUNDING, ROUNDING_OF, Document, require_losses

LOSS_OF = {"gradient": "loss_sum_nats", "blind": "blind_loss_sum_nats"}
"""Search -> where a record of an attack keeps the loss that it led to."""
WRITTEN_BY = {"gradient": "positions", "blind": "blind_positions"}
"""Search -> where a record of hotflip keeps what it replaced."""
Scored = Mapping[str, tuple[str, int]]
"""Document -> its source, and how many of its tokens are scored."""


def require_attacks(
    attack: str,
    found: Mapping[str, UatResult | HotFlipResult],
    records: Mapping[str, Rows],
    judged: Mapping[str, Document],
    given: TriggerAttack | FlipAttack,
    search_documents: int,
) -> None:
    """Every model was attacked as configured, at the same counted cost, on the same tokens that no search has seen.

    `given` is the attack's configuration; `search_documents` are those of attack-search.
    """
    for model, result in found.items():
        _require_attack(f"{attack} on {model}", model, result, records[model], judged, given)
    _require_comparable(attack, found, records)
    for model, result in found.items():
        what, cost = f"{attack} on {model}", (result.cost.forward_sequences, result.cost.backward_sequences)
        if isinstance(given, TriggerAttack):
            required = _trigger_cost(given, search_documents)
        else:
            required = _flip_cost(given, result.documents)
        require_equal(f"{what} spent what its configuration allows, in forwards and backwards", cost, required)
        if isinstance(result, HotFlipResult):
            _require_flips_searched(what, result, records[model])
            continue
        for search, trigger in (("gradient", result.gradient), ("blind", result.blind)):
            _require_best_restart(f"{search} search of {what}", trigger, result.attack)
            _require_curve(f"{search} search of {what}", trigger, result.attack, search_documents)
    _require_read(attack, [row for own in records.values() for row in own])


# --------------------------------------------------------------------------------- one model, as it was judged


def _require_attack(
    what: str, model: str, found: UatResult | HotFlipResult, rows: Rows, judged: Mapping[str, Document], given: Any
) -> None:
    """On documents of the split that no search has seen; tokens that an attacker might have written are not scored."""
    measured = (found.model, found.split, {row["model"] for row in rows})
    require_equal(f"{what} is judged on {JUDGED}, and its records are of it", measured, (model, JUDGED, {model}))
    require_equal(f"{what} attacked as this study is configured", found.attack.scientific(), given.scientific())
    require_losses(what, rows)
    flips = isinstance(found, HotFlipResult)
    first = [(of.example_id, of.source) for of in list(judged.values())[: given.documents if flips else None]]
    attacked = [(row["example_id"], row["source"]) for row in rows]
    require_each_once(f"{what} attacked the documents of {JUDGED}", attacked, first)
    require_equal(f"the documents that {what} counted are its records", found.documents, len(rows))
    draws = given.control_draws if flips else given.control_triggers
    for row in rows:
        _require_own_tokens(what, row, judged[row["example_id"]], given.text_tokens)
        kept = f"every draw of the control of {what} is kept, document {row['example_id']}"
        require_equal(kept, len(row["control_losses_sum_nats"]), draws)
    if isinstance(found, HotFlipResult):
        _require_flips(what, found, rows, judged)
    else:
        for trigger in (found.gradient, found.blind):
            length = len(trigger.trigger_ids)
            require_equal(f"the trigger of {what} is as long as configured", length, found.attack.trigger_tokens)
    cost = found.cost
    as_forwards = cost.forward_sequences + BACKWARD_FORWARDS * cost.backward_sequences
    require_equal(f"blind search spent as much as {what}", cost.blind_forward_sequences, as_forwards)


def _require_own_tokens(what: str, row: dict[str, Any], document: Document, most: int) -> None:
    """All tokens of the text but those that an attacker may write are scored, the same before and after.

    Of a pair the whole reference, into which nobody writes.
    """
    tokens, where = document.scored(most), f"document {row['example_id']}"
    written = row.get("writable", []) if document.reference is None else []
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


def _require_flips(what: str, found: HotFlipResult, rows: Rows, judged: Mapping[str, Document]) -> None:
    for row in rows:
        where, writable = f"document {row['example_id']}", row["writable"]
        tokens = min(judged[row["example_id"]].tokens, found.attack.text_tokens)
        of_text = len(set(writable)) == len(writable) and set(writable) <= set(range(tokens))
        places = f"{what}: positions open to the attacker are of the text, {where}"
        require(of_text, places, writable, f"each of {tokens} once")
        require_limit(f"{what} scored at least half of the text, open in {where}", len(writable), tokens // 2)
        for kind in ("positions", "blind_positions"):
            outside = sorted(set(row[kind]) - set(writable))
            require(not outside, f"{what} wrote where it may write", f"{where}: {kind} {outside}", "none outside")
            allowed = min(found.attack.flips, tokens // 2)
            require_limit(f"{what} wrote as much as it may, {kind} in {where}", len(row[kind]), allowed)
            written = row[kind.replace("positions", "replacements")]
            require_equal(f"{what} kept a token for each of its {kind}, {where}", len(written), len(row[kind]))
        require_equal(f"the flips of {what} are counted in {where}", row["flips"], len(row["positions"]))
        # the rule once more, in its own words: `succeeded` made what is checked
        risen = (row["loss_sum_nats"] - row["clean_loss_sum_nats"]) / row["tokens_scored"]
        clean = row["text_clean_loss_sum_nats"] / row["text_tokens"]
        success = risen > found.attack.success_relative_increase * clean
        follows = f"successes of {what} follow from the losses in its records, {where}"
        require_equal(follows, row["success"], success)
    for column in ("forward_sequences", "backward_sequences", "blind_forward_sequences", "flips", "round_trips"):
        total = sum(row[column] for row in rows)
        require_equal(f"{column} of {what} is the sum of its records'", getattr(found, column), total)


def _require_comparable(attack: str, found: Mapping[str, Any], records: Mapping[str, Rows]) -> None:
    """Every model was attacked at the same counted cost, on the same tokens of the same documents."""
    reference = next(iter(found))
    tokens = {
        model: {row["example_id"]: (row["tokens_scored"], tuple(row.get("writable", ()))) for row in rows}
        for model, rows in records.items()
    }
    for model, result in found.items():
        what = f"{attack} spent the same on every model, {model} as {reference}"
        require_equal(what, result.cost, found[reference].cost)
        differing = [id_ for id_, scored in tokens[model].items() if scored != tokens[reference][id_]]
        where = f"{differing[:1]}: {model} differs from {reference}"
        require(not differing, f"{attack} scored the same tokens for every model", where, "equal tokens")


def _require_read(attack: str, rows: Rows) -> None:
    """Some model read what was written in front of a text, or into it.

    A loss that is the clean one in every bit, on every text of every model, is that of a text whose beginning was cut
    off, or of one in which nothing was replaced. It may be true of one model alone: one that no longer looks at what it
    reads, of which the tables say that the attack finds no more than blind search.
    """
    attacked = [(row, [row["loss_sum_nats"]]) for row in rows if row.get("positions", ["a trigger"])]
    drawn = [(row, row["control_losses_sum_nats"]) for row in rows]
    for what, found in (("search", attacked), ("random control", drawn)):
        require(
            not found or any(loss != row["clean_loss_sum_nats"] for row, losses in found for loss in losses),
            f"the models read what the {what} of {attack} wrote",
            f"the clean loss on all {len(found)} texts of all models, in every bit",
            "another on one of them",
            "Find what cuts the attacked texts, or puts them back: no number of this attack means anything",
        )


# ------------------------------------------------------------------------------------------------- the search


def _trigger_cost(attack: TriggerAttack, documents: int) -> tuple[int, int]:
    """Forwards and backwards of all restarts on so many search documents.

    All documents are read once without a trigger, and once behind the trigger of every restart. An iteration reads its
    documents behind the present trigger, behind every candidate, and for the gradient.
    """
    read = min(attack.batch_documents, documents)
    restart = attack.iterations * read * (1 + attack.candidates + 1) + documents
    return documents + attack.restarts * restart, attack.restarts * attack.iterations * read


def _flip_cost(attack: FlipAttack, documents: int) -> tuple[int, int]:
    """Forwards and backwards on so many documents, each read as it is, and in a round as every candidate and for the
    gradient."""
    rounds = attack.rounds_on_a_text
    return documents * (1 + rounds * (attack.candidates + 1)), documents * rounds


def _as_forwards(attack: Search) -> int:
    """Forwards that an iteration spends on a text beside reading it as it is by then."""
    return attack.candidates + 1 + BACKWARD_FORWARDS


def _require_best_restart(what: str, found: Trigger, attack: TriggerAttack) -> None:
    made, required = (len(found.restarts), len(found.curve)), (attack.restarts, attack.restarts * attack.iterations)
    require_equal(f"the {what} ran to its end, in restarts and iterations", made, required)
    best = max(found.restarts, key=lambda restart: restart.search_loss_nats_per_token)
    require_equal(
        f"the {what} kept the trigger of its best restart, also at 1 of its budget",
        (found.trigger_ids, found.search_loss_nats_per_token, found.budgets.get("1")),
        (best.trigger_ids, best.search_loss_nats_per_token, best.trigger_ids),
    )


def _require_curve(what: str, found: Trigger, attack: TriggerAttack, documents: int) -> None:
    """The curve never falls, and has a point after each iteration, at what was spent by then.

    Where an iteration reads all search texts, it ends at the loss of the trigger that was kept.
    """
    read, points = min(attack.batch_documents, documents), [point.loss_nats_per_token for point in found.curve]
    for number, point in enumerate(found.curve):
        restarts = number // attack.iterations  # ended before this iteration
        spent = documents * (1 + restarts) + (number + 1) * read * (_as_forwards(attack) + 1)
        at = f"the curve of the {what} after iteration {number + 1} stands at what was spent"
        require_equal(at, point.forward_sequences, spent)
    require_equal(f"the curve of the {what} never falls", points, sorted(points))
    if read == documents:
        best, ends = found.search_loss_nats_per_token, f"the curve of the {what} ends at the loss of its trigger"
        require_close(ends, points[-1], best, ROUNDING_OF[attack.search_precision] * best)


def _require_flips_searched(what: str, found: HotFlipResult, rows: Rows) -> None:
    """The search saw what was judged, at the shares of its budget too, and the curve says the same."""
    rounding, rounds = ROUNDING_OF[found.attack.search_precision], found.attack.rounds_on_a_text
    shares = [steps_after(share, rounds) for share in BUDGET_SHARES]
    for row in rows:
        saw, document = row["search_losses_sum_nats"], f"document {row['example_id']}"
        require_equal(f"{what} kept what it saw in every round in {document}", len(saw), rounds + 1)
        require_equal(f"{what} kept in no round what lowers the loss of {document}", saw, sorted(saw))
        judged = [("clean_loss_sum_nats", 0, row["clean_loss_sum_nats"]), ("loss_sum_nats", -1, row["loss_sum_nats"])]
        judged += [("budget_losses_sum_nats", *of) for of in zip(shares, row["budget_losses_sum_nats"], strict=True)]
        for column, number, loss in judged:
            same = f"{column} of {document} is what the search of {what} saw"
            require_close(same, loss, saw[number], rounding * saw[number])
    require_equal(f"the curve of {what} has a point for every round", len(found.curve), rounds + 1)
    tokens = sum(row["tokens_scored"] for row in rows)
    for number, point in enumerate(found.curve):
        risen = math.fsum(row["search_losses_sum_nats"][number] - row["search_losses_sum_nats"][0] for row in rows)
        after, spent = f"the curve of {what} after round {number}", 1 + number * _as_forwards(found.attack)
        require_equal(f"{after} stands at what was spent", point.forward_sequences, spent)
        require_close(f"{after} follows from its records", point.loss_nats_per_token, risen / tokens, 1e-9)
    correlations = [value for row in rows for value in row["rank_correlations"]]
    median = statistics.median(correlations) if correlations else None
    require_equal(f"the rank correlation of {what} is the median of its records'", found.rank_correlation, median)


# ------------------------------------------------------------------------------------------------------ transfer


def require_transfer(
    found: TransferResult,
    rows: Rows,
    own: Mapping[str, Mapping[str, Rows]],
    uat: Mapping[str, UatResult],
    searched: Sequence[Document],
) -> None:
    """Everything was tried on every model, on the tokens of the attacks, and the result says what its records say.

    `own` are the records of each attack and model; `searched` the documents of attack-search.
    """
    require_losses("transfer", rows)
    tried: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        tried[row["attack"], row["split"], row["search"], row["found_for"], row["model"]].append(row)
    length = next(iter(uat.values())).attack.text_tokens
    of_search = {one.example_id: (one.source, one.scored(length)) for one in searched}
    clean: dict[str, dict[str, float]] = defaultdict(dict)
    matrices = {("uat", SEARCHED): found.uat_on_search, ("uat", JUDGED): found.uat, ("hotflip", JUDGED): found.hotflip}
    for (attack, split), matrix in matrices.items():
        models = list(own[attack])
        everything = {search: {model: models for model in models} for search in LOSS_OF}
        shape = {search: {model: list(row) for model, row in of.items()} for search, of in matrix.items()}
        require_equal(f"transfer tried {attack} of every model on every model", shape, everything)
        for search, found_for in product(LOSS_OF, models):
            of_models: dict[str, Rows] = {}
            for model in models:
                what = f"transfer of {attack} ({search} search) from {found_for} to {model} on {split}"
                of_pair = of_models[model] = tried.pop((attack, split, search, found_for, model), [])
                if split == SEARCHED:
                    _require_documents(what, of_pair, of_search)
                    _require_one_clean_loss(what, of_pair, clean[model])
                else:
                    _require_own(what, of_pair, own[attack][model], LOSS_OF[search] if found_for == model else None)
                _require_increase(what, matrix[search][found_for][model], of_pair)
            if split == SEARCHED:
                _require_as_searched(search, found_for, uat[found_for], matrix)
            if attack == "uat" or any(row[WRITTEN_BY[search]] for row in own[attack][found_for]):
                _require_read_by_others(f"{attack} ({search} search) on {found_for}", found_for, of_models)
    for (model, result), search in product(uat.items(), LOSS_OF):
        _require_restarts(search, model, result, tried, own["uat"], of_search)
    require(not tried, "transfer tried the attacks of the study", f"also {', '.join(map(str, tried))}", "no others")


def _require_restarts(
    search: str,
    found_for: str,
    found: UatResult,
    tried: dict[tuple[str, ...], Rows],
    own: Mapping[str, Rows],
    of_search: Scored,
) -> None:
    """Restarts that were not kept were tried like the kept one; takes their rows out of `tried`."""
    trigger: Trigger = getattr(found, search)
    for name, restart in zip(trigger.named(), trigger.restarts, strict=True):
        for model, split in product(own if name != "uat" else (), (SEARCHED, JUDGED)):
            what = f"transfer of {name} ({search} search) from {found_for} to {model} on {split}"
            rows = tried.pop((name, split, search, found_for, model), [])
            if split == JUDGED:
                _require_own(what, rows, own[model], None)
                continue
            _require_documents(what, rows, of_search)
            if model == found_for:
                seen = restart.search_loss_nats_per_token - trigger.search_loss_clean_nats_per_token
                rounding = ROUNDING_OF[found.attack.search_precision] * restart.search_loss_nats_per_token
                _require_increase(what, seen, rows, rounding)


def _require_documents(what: str, rows: Rows, expected: Scored) -> None:
    scored = ((row["example_id"], row["source"], row["tokens_scored"]) for row in rows)
    required = ((id_, source, tokens) for id_, (source, tokens) in expected.items())
    require_each_once(f"{what} scored the same tokens as the attack", scored, required)


def _require_own(what: str, rows: Rows, own: Rows, loss: str | None) -> None:
    """Tokens and clean losses are those of the attack's records; so is the attacked loss (column `loss`), where it was
    found for the model."""
    attacked = {row["example_id"]: row for row in own}
    _require_documents(what, rows, {id_: (row["source"], row["tokens_scored"]) for id_, row in attacked.items()})
    columns = {name: name for name in ("clean_loss_sum_nats", "text_clean_loss_sum_nats")}
    for row in rows:
        for column, theirs in (columns | ({"loss_sum_nats": loss} if loss else {})).items():
            expected, few = attacked[row["example_id"]][theirs], ROUNDING * row["tokens_scored"]
            same = f"{what} measured what the attack measured, {column} of document {row['example_id']}"
            require_close(same, row[column], expected, max(few, ROUNDING * expected))


def _require_one_clean_loss(what: str, rows: Rows, known: dict[str, float]) -> None:
    """A text has one clean loss, whatever is tried on it beside; `known`: document -> the one that was seen first."""
    for row in rows:
        clean = known.setdefault(row["example_id"], row["clean_loss_sum_nats"])
        same = f"{what} compares with one clean loss of each text, document {row['example_id']}"
        require_close(same, row["clean_loss_sum_nats"], clean, ROUNDING * clean)


def _require_as_searched(search: str, model: str, found: UatResult, matrix: Transferred) -> None:
    """A trigger does on attack-search to its own model what its search saw there: the strongest is chosen by this."""
    trigger: Trigger = getattr(found, search)
    seen = trigger.search_loss_nats_per_token - trigger.search_loss_clean_nats_per_token
    rounding = ROUNDING_OF[found.attack.search_precision] * trigger.search_loss_nats_per_token
    what = f"the trigger of the {search} search on {model} does on {SEARCHED} what it saw"
    require_close(what, matrix[search][model][model], seen, rounding)


def _require_read_by_others(what: str, found_for: str, of_models: Mapping[str, Rows]) -> None:
    """Some model read what was found for another one."""
    others = [row for model, rows in of_models.items() if model != found_for for row in rows]
    require(
        any(row["loss_sum_nats"] != row["clean_loss_sum_nats"] for row in others),
        f"other models read what {what} wrote",
        f"the clean loss on all {len(others)} texts, in every bit",
        "another on one of them",
        "Find what leaves out the prefix or the flips in transfer: no number of this attack means anything",
    )


def _require_increase(what: str, stated: float, rows: Rows, rounding: float = 1e-9) -> None:
    risen = math.fsum(row["loss_sum_nats"] - row["clean_loss_sum_nats"] for row in rows)
    computed = risen / sum(row["tokens_scored"] for row in rows)
    require_close(f"{what} follows from the records", stated, computed, max(rounding, ROUNDING * abs(computed)))
