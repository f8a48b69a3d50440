"""What another precision than fp32 does to test losses: the same documents of every model have both.

Their records have `fp32_loss_sum_nats` too, None but of these documents.
"""

import math
from collections.abc import Collection, Sequence

from storage.errors import require_each_once
from storage.records import Rows
from tasks.findings.audit import sample
from tasks.language.texts import Text
from tasks.stage.result import Result

COMPARED_DOCUMENTS = 64
"""Documents of which an evaluation in another precision than fp32 has the loss in fp32 beside it."""
ROUNDINGS = 3
"""How many times as far as these, for its length, any other document may be away. In 400 draws of 64 of 900 documents
no other was farther; farther than twice were 0.03 % (a network of 2 M parameters in bf16, on a CPU)."""


class RoundedLoss(Result):
    """What another precision does to the loss of a model: that less the loss in fp32, on the same documents.

    In nats per token: the mean, weighted by tokens, and the largest of a document, without its sign.
    """

    documents: int
    mean_nats_per_token: float
    largest_nats_per_token: float


def compared_documents(ids: Sequence[str]) -> set[str]:
    """The evaluated documents whose losses are compared with fp32."""
    return {ids[place] for place in sample(0, "fp32", len(ids), COMPARED_DOCUMENTS)}


def rounded(rows: Rows) -> dict[str, RoundedLoss]:
    """By model, of those that have losses in fp32 too; none where all are in fp32."""
    losses = {}
    for model, away in _away_from_fp32(rows).items():
        losses[model] = RoundedLoss(
            documents=len(away),
            mean_nats_per_token=math.fsum(nats for nats, _ in away) / sum(tokens for _, tokens in away),
            largest_nats_per_token=max(abs(nats) / tokens for nats, tokens in away),
        )
    return losses


def rounding_allowed(rows: Rows, model: str, tokens: int) -> float:
    """How far, in nats per token, a loss of `model` over so many tokens may be away from that in fp32.

    Roundings of tokens add up like chances: a longer document's loss per token is nearer, by the root of its length.
    """
    away = _away_from_fp32(rows).get(model, [])
    return ROUNDINGS * max((abs(nats) / math.sqrt(own) for nats, own in away), default=0.0) / math.sqrt(tokens)


def _away_from_fp32(rows: Rows) -> dict[str, list[tuple[float, int]]]:
    """Model -> (loss less that in fp32 in nats, tokens) of each document that has both."""
    away: dict[str, list[tuple[float, int]]] = {}
    for row in rows:
        if (exact := row.get("fp32_loss_sum_nats")) is not None:
            away.setdefault(row["model"], []).append((row["loss_sum_nats"] - exact, row["tokens_scored"]))
    return away


def require_compared(rows: Rows, test: Collection[Text], precision: str) -> None:
    """CheckFailed unless every model has losses in fp32 of the documents that are compared, and of no others."""
    beside = compared_documents([document.example_id for document in test]) if precision != "fp32" else set()
    exact = [(row["model"], row["example_id"]) for row in rows if row.get("fp32_loss_sum_nats") is not None]
    wanted = [(name, id_) for name in {row["model"] for row in rows} - {"unigram"} for id_ in beside]
    require_each_once("evaluate has losses in fp32 beside those in another precision", exact, wanted)
