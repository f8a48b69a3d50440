"""Checks of attacks before any number of theirs is shown: recomputed from the records, and from the text.

Models are compared by the records of transfer, so these must be those of the attacks where both say the same.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from storage.errors import require, require_close, require_each_once, require_equal, require_limit
from storage.records import Rows
from tasks.attacks.configuration import BUDGET_SHARES, FlipAttack, TriggerAttack, steps_after
from tasks.attacks.results import SEARCHES, TriggerSearched, UatResult
from tasks.attacks.stages import JUDGED, SEARCHED
from tasks.language.checks import ROUNDING, ROUNDING_OF, require_losses
from tasks.language.texts import Text

Scored = Mapping[str, tuple[str, int]]
"""Document -> its source, and how many of its tokens are scored."""


def require_attacks(
    attack: str, records: Mapping[str, Rows], judged: Mapping[str, Text], settings: TriggerAttack | FlipAttack
) -> None:
    """Every model was attacked on the same tokens of the configured documents, which no search has seen."""
    documents = list(judged.values())[: settings.documents if isinstance(settings, FlipAttack) else None]
    required = [(document.example_id, document.source) for document in documents]
    draws = settings.control_draws if isinstance(settings, FlipAttack) else settings.control_triggers
    for model, rows in records.items():
        what = f"{attack} on {model}"
        require_equal(f"the records of {what} are of it", {row["model"] for row in rows}, {model})
        require_losses(what, rows)
        attacked = [(row["example_id"], row["source"]) for row in rows]
        require_each_once(f"{what} attacked the documents of {JUDGED}", attacked, required)
        for row in rows:
            _require_own_tokens(what, row, judged[row["example_id"]], settings.text_tokens)
            kept = f"every draw of the control of {what} is kept, document {row['example_id']}"
            require_equal(kept, len(row["control_losses_sum_nats"]), draws)
            if isinstance(settings, FlipAttack):
                _require_flips(what, row, judged[row["example_id"]], settings)
                _require_flips_searched(what, row, settings)
    _require_comparable(attack, records)
    _require_read(attack, [row for own in records.values() for row in own])


def _require_own_tokens(what: str, row: dict[str, Any], document: Text, most: int) -> None:
    """All tokens of the text but those that an attacker may write are scored, the same before and after.

    Of a pair the whole reference, into which nobody writes.
    """
    tokens, where = document.scored(most), f"document {row['example_id']}"
    written = row.get("writable", []) if not document.reference else []
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


def _require_flips(what: str, row: dict[str, Any], document: Text, attack: FlipAttack) -> None:
    where, writable, tokens = f"document {row['example_id']}", row["writable"], min(len(document), attack.text_tokens)
    of_text = len(set(writable)) == len(writable) and set(writable) <= set(range(tokens))
    require(
        of_text, f"{what}: positions open to the attacker are of the text, {where}", writable, f"each of {tokens} once"
    )
    require_limit(f"{what} scored at least half of the text, open in {where}", len(writable), tokens // 2)
    for kind in ("positions", "blind_positions"):
        outside = sorted(set(row[kind]) - set(writable))
        require(not outside, f"{what} wrote where it may write", f"{where}: {kind} {outside}", "none outside")
        allowed = min(attack.flips, tokens // 2)
        require_limit(f"{what} wrote as much as it may, {kind} in {where}", len(row[kind]), allowed)
        written = row[kind.replace("positions", "replacements")]
        require_equal(f"{what} kept a token for each of its {kind}, {where}", len(written), len(row[kind]))
    require_equal(f"the flips of {what} are counted in {where}", row["flips"], len(row["positions"]))
    # the rule once more, in its own words: `succeeded` made what is checked
    risen = (row["loss_sum_nats"] - row["clean_loss_sum_nats"]) / row["tokens_scored"]
    success = risen > attack.success_relative_increase * row["text_clean_loss_sum_nats"] / row["text_tokens"]
    require_equal(f"successes of {what} follow from the losses in its records, {where}", row["success"], success)


def _require_flips_searched(what: str, row: dict[str, Any], attack: FlipAttack) -> None:
    """The search saw what was judged, at the shares of its budget too."""
    rounding, rounds = ROUNDING_OF[attack.search_precision], attack.rounds_on_a_text
    saw, document = row["search_losses_sum_nats"], f"document {row['example_id']}"
    require_equal(f"{what} kept what it saw in every round in {document}", len(saw), rounds + 1)
    require_equal(f"{what} kept in no round what lowers the loss of {document}", saw, sorted(saw))
    shares = zip((steps_after(share, rounds) for share in BUDGET_SHARES), row["budget_losses_sum_nats"], strict=True)
    judged = [("clean_loss_sum_nats", 0, row["clean_loss_sum_nats"]), ("loss_sum_nats", -1, row["loss_sum_nats"])]
    for column, number, loss in [*judged, *(("budget_losses_sum_nats", *budget) for budget in shares)]:
        same = f"{column} of {document} is what the search of {what} saw"
        require_close(same, loss, saw[number], rounding * saw[number])


def _require_comparable(attack: str, records: Mapping[str, Rows]) -> None:
    """Every model was attacked on the same tokens of the same documents."""
    tokens = {
        model: {row["example_id"]: (row["tokens_scored"], tuple(row.get("writable", ()))) for row in rows}
        for model, rows in records.items()
    }
    reference, first = next(iter(tokens.items()))
    for model, own in tokens.items():
        differing = [id_ for id_, scored in own.items() if scored != first[id_]]
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
    for what, texts in (("search", attacked), ("random control", drawn)):
        require(
            not texts or any(loss != row["clean_loss_sum_nats"] for row, losses in texts for loss in losses),
            f"the models read what the {what} of {attack} wrote",
            f"the clean loss on all {len(texts)} texts of all models, in every bit",
            "another on one of them",
            "Find what cuts the attacked texts, or puts them back: no number of this attack means anything",
        )


# ------------------------------------------------------------------------------------------------------ transfer


def require_transfer(
    rows: Rows,
    own: Mapping[str, Mapping[str, Rows]],
    uat: Mapping[str, UatResult],
    attack: TriggerAttack,
    searched: Sequence[Text],
) -> None:
    """Everything was tried on every model, on the tokens of the attacks.

    `own` are the records of each attack and model; `searched` the documents of attack-search.
    """
    require_losses("transfer", rows)
    for (model, result), search in product(uat.items(), SEARCHES):
        _require_ended(f"the {search} search of uat on {model}", getattr(result, search), attack)
    tried: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        tried[row["attack"], row["split"], row["search"], row["found_for"], row["model"]].append(row)
    of_search = {each.example_id: (each.source, each.scored(attack.text_tokens)) for each in searched}
    clean: dict[str, dict[str, float]] = defaultdict(dict)
    for kind, split in (("uat", SEARCHED), ("uat", JUDGED), ("hotflip", JUDGED)):
        for search, found_for in product(SEARCHES, own[kind]):
            for name in getattr(uat[found_for], search).named() if kind == "uat" else [kind]:
                of_models = {model: tried.pop((name, split, search, found_for, model), []) for model in own[kind]}
                for model, of_pair in of_models.items():
                    what = f"transfer of {name} ({search} search) from {found_for} to {model} on {split}"
                    if split == SEARCHED:
                        _require_documents(what, of_pair, of_search)
                        _require_one_clean_loss(what, of_pair, clean[model])
                    else:
                        kept = name == kind and found_for == model  # a restart that was not kept has no record there
                        loss = f"{SEARCHES[search]}loss_sum_nats" if kept else None
                        _require_own(what, of_pair, own[kind][model], loss)
                if split == SEARCHED:
                    _require_searched(uat[found_for], search, found_for, name, of_models[found_for], attack)
                if kind == "uat" or any(row[f"{SEARCHES[search]}positions"] for row in own[kind][found_for]):
                    _require_read_by_others(f"{name} ({search} search) on {found_for}", found_for, of_models)
    require(not tried, "transfer tried the attacks of the study", f"also {', '.join(map(str, tried))}", "no others")


def _require_ended(what: str, searched: TriggerSearched, attack: TriggerAttack) -> None:
    require_equal(f"{what} ran to its end, in restarts", len(searched.restarts), attack.restarts)
    lengths = {len(restart.trigger_ids) for restart in searched.restarts}
    require_equal(f"the triggers of {what} are as long as configured", lengths, {attack.trigger_tokens})


def _require_searched(result: UatResult, search: str, model: str, name: str, rows: Rows, attack: TriggerAttack) -> None:
    """A trigger does on attack-search to its own model what its search saw there: the strongest is chosen by this."""
    searched: TriggerSearched = getattr(result, search)
    restart = searched.restarts[list(searched.named()).index(name)]
    rounding, tokens = ROUNDING_OF[attack.search_precision], sum(row["tokens_scored"] for row in rows)
    for what, column, saw in (
        ("costs", "loss_sum_nats", restart.search_loss_nats_per_token),
        ("costs without it", "clean_loss_sum_nats", searched.search_loss_clean_nats_per_token),
    ):
        computed = math.fsum(row[column] for row in rows) / tokens
        check = f"what the {search} search on {model} saw that {name} {what} on {SEARCHED} follows from transfer"
        require_close(check, saw, computed, rounding * computed)


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
