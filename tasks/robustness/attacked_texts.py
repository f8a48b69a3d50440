"""The texts that an attack changed most, and as much as usual: before and after, with what was written marked.

The text may not be ours to hand on: exports leave it out (`storage.__main__.LEFT_OUT`). What stands here are excerpts
of at most `MOST_TOKENS` tokens, of two texts for each model and attack, on the report's page and nowhere else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from storage.records import read_records
from tasks.attacks.stages import JUDGED
from tasks.findings.document import Excerpt, Folded, Piece
from tasks.findings.numbers import NATS
from tasks.findings.table import visible
from tasks.language.texts import texts_of, tokenizer_of
from tasks.monotonic.arm import BASELINE, MONOTONIC
from tasks.robustness.final_results import FinalResults
from tasks.stage.run import StageInput

MOST_TOKENS = 60
"""Length of an excerpt in tokens, at most."""
LEAST_AROUND = 2
"""Tokens on each side of one that was written: where there is no room for these the excerpt ends."""
LEFT_OUT = " … "
Row = Mapping[str, Any]
Token = tuple[int, bool]
"""Its id, and whether the attack wrote it."""


@dataclass(frozen=True)
class AttackedTexts:
    """Excerpts of one attack: those that stand in the report, and those that are folded there."""

    shown: Sequence[Excerpt]
    folded: Sequence[Folded]


def attacked_texts(
    results: FinalResults, records: Mapping[str, Mapping[str, Sequence[Row]]], stages: Mapping[str, StageInput]
) -> dict[str, AttackedTexts]:
    """Attack -> its texts: of baseline and monotonic, and folded those of every other arm whose layers live.

    `records`: attack -> model -> its records under the strongest attack, which say whose that was.
    """
    living = [arm for arm in results.arms if arm not in results.dead_arms]
    read = _Read(results, stages)
    excerpts = {}
    for attack, kind in (("uat", read.behind_trigger), ("hotflip", read.flipped)):
        of_arm = {arm: [kind(arm, *chosen) for chosen in _chosen(records[attack][arm])] for arm in living}
        main = [arm for arm in (BASELINE, MONOTONIC) if arm in of_arm]
        excerpts[attack] = AttackedTexts(
            [excerpt for arm in main for excerpt in of_arm[arm]],
            [Folded(f"The same of {arm}", excerpts=own) for arm, own in of_arm.items() if arm not in main],
        )
    return excerpts


def _chosen(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """The worst text and the typical one; of equals the one with the smaller id."""
    ordered = sorted(rows, key=lambda row: (_added(row), row["example_id"]))
    return [("worst", ordered[-1]), ("typical", ordered[(len(ordered) - 1) // 2])]


def _added(row: Row) -> float:
    """Loss that the attack adds, in nats per scored token."""
    return (row["loss_sum_nats"] - row["clean_loss_sum_nats"]) / row["tokens_scored"]


class _Read:
    """The texts that were attacked, and what was found for each model."""

    def __init__(self, results: FinalResults, stages: Mapping[str, StageInput]) -> None:
        self._results, self._stages = results, stages
        self._tokenizer = tokenizer_of(stages["text"])
        self._texts = {text.example_id: text.tokens for text in texts_of(stages["text"], JUDGED)}
        self._flips: dict[str, dict[str, Row]] = {}

    def behind_trigger(self, arm: str, kind: str, row: Row) -> Excerpt:
        search, found_for = row["attacked_by"]
        findings = self._results.attacks["uat"]
        trigger = (findings.triggers if search == "gradient" else findings.blind_triggers)[found_for].trigger_ids
        tokens = self._texts[row["example_id"]][: findings.attack.text_tokens]
        written = [(token, True) for token in trigger] + [(token, False) for token in tokens]
        return Excerpt(_caption(arm, kind, row), {"behind the trigger": self._pieces(written)})

    def flipped(self, arm: str, kind: str, row: Row) -> Excerpt:
        search, found_for = row["attacked_by"]
        tokens = self._texts[row["example_id"]][: self._results.attacks["hotflip"].attack.text_tokens]
        prefix, flips = "" if search == "gradient" else "blind_", self._flips_of(found_for)[row["example_id"]]
        new = dict(zip(flips[f"{prefix}positions"], flips[f"{prefix}replacements"], strict=True))
        before = [(token, place in new) for place, token in enumerate(tokens)]
        after = [(new.get(place, token), place in new) for place, token in enumerate(tokens)]
        return Excerpt(_caption(arm, kind, row), {"before": self._pieces(before), "after": self._pieces(after)})

    def _flips_of(self, model: str) -> dict[str, Row]:
        if model not in self._flips:
            file = self._stages[f"hotflip-{model}"].path / "records.parquet"
            columns = ["example_id", "positions", "replacements", "blind_positions", "blind_replacements"]
            self._flips[model] = {row["example_id"]: row for row in read_records(file, columns)}
        return self._flips[model]

    def _pieces(self, tokens: Sequence[Token]) -> list[Piece]:
        """The text of the tokens around those that were written, with these marked."""
        ids, marked = [token for token, _ in tokens], [written for _, written in tokens]
        kept, pieces = _kept(marked), list[Piece]()
        for begin, end in kept:
            if begin:
                pieces.append((LEFT_OUT, False))
            for written, run in groupby(range(begin, end), marked.__getitem__):
                first, *others = run
                pieces.append((visible(self._text(ids, first, first + len(others) + 1)), written))
        return pieces if kept[-1][1] == len(tokens) else [*pieces, (LEFT_OUT, False)]

    def _text(self, ids: list[int], begin: int, end: int) -> str:
        """The text of ids[begin:end], with a space before it where its tokenizer has one behind another token."""
        before, whole = self._decoded(ids[max(begin - 1, 0) : begin]), self._decoded(ids[max(begin - 1, 0) : end])
        return whole[len(before) :] if whole.startswith(before) else self._decoded(ids[begin:end])

    def _decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) if ids else ""


def _kept(written: Sequence[bool]) -> list[tuple[int, int]]:
    """Begin and end of each part that is shown: as much around what was written as there is room for."""
    places = [place for place, marked in enumerate(written) if marked] or [0]
    for around in range(MOST_TOKENS, LEAST_AROUND - 1, -1):
        near = {number for place in places for number in range(place - around, place + around + 1)}
        shown = sorted(near & set(range(len(written))))
        if len(shown) <= MOST_TOKENS:
            break
    parts: list[tuple[int, int]] = []
    for number in shown[:MOST_TOKENS]:
        begin = parts.pop()[0] if parts and parts[-1][1] == number else number
        parts.append((begin, number + 1))
    return parts


def _caption(arm: str, kind: str, row: Row) -> str:
    clean, attacked = (row[f"{name}_sum_nats"] / row["tokens_scored"] for name in ("clean_loss", "loss"))
    search, found_for = row["attacked_by"]
    source = row["source"][:12] if row["source"] == row["example_id"] else row["source"]  # a document of its own
    return (
        f"{arm}, {kind}: {clean:.4f} nats per token before, {attacked:.4f} after ({NATS(_added(row))}), on the "
        f"{row['tokens_scored']:,} tokens that are scored. From {visible(source)}; found for {found_for}"
        f"{'' if search == 'gradient' else f' by {search} search'}."
    )
