"""audit: what the records say of every model, asked of `model/` again; see `tasks.attacks.audit`.

Test losses in another precision may be away by what the documents were that have both; of these some are asked again
too.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from tasks.attacks.audit import HOW, Row, again, ask_models, token_losses
from tasks.attacks.reading import records_of
from tasks.findings.audit import Again, Asked, Audited, AuditResult
from tasks.language.pairs import packed_split
from tasks.language.texts import texts_of, tokenizer_of
from tasks.robustness.rounding import rounding_allowed
from tasks.robustness.stages import AUDITED, AuditConfig, EvaluateConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

KIND = "test losses"


def audit(run: StageRun, config: AuditConfig, text: StageInput, **inputs: StageInput) -> AuditResult:
    """CheckFailed names the first number, or the first model, that is not what the records say."""
    precision = inputs["evaluation"].configuration(EvaluateConfig).evaluation_precision
    but = f", beyond what {precision} rounds test losses by" if precision != "fp32" else ""
    audited = Audited(run, HOW.format(device(config.execution).type) + but)
    test = _Test(text, records_of(inputs["evaluation"]), config.audit.examples)
    ask_models(run, config, text, inputs, audited, test.asked)
    counts_V = np.load(text.path / "text" / "unigram.npy")
    unigram_V = -np.log((counts_V + 1) / (counts_V.sum() + len(counts_V)))
    for asked, apart in test.of("unigram", lambda ids: float(unigram_V[ids].sum())):
        audited.ask(asked, apart)
    return audited.result()


class _Test:
    """The losses of whole test documents."""

    def __init__(self, text: StageInput, rows: list[Row], count: int) -> None:
        self.rows, self.count, self.end = rows, count, tokenizer_of(text).eos_token_id
        self.length = packed_split(text.path / "text", "train").sequence_length
        self.tokens = {document.example_id: document.tokens for document in texts_of(text, "test")}

    def asked(self, name: str, model: PreTrainedModel) -> Iterator[tuple[Asked[Any], str]]:
        return self.of(name, partial(self._in_windows, model))

    def of(self, name: str, total: Callable[[list[int]], float]) -> Iterator[tuple[Asked[Any], str]]:
        """`total` is the summed loss of a whole document, of token ids."""
        rows = [row for row in self.rows if row["model"] == name]
        exact = [row for row in rows if row.get("fp32_loss_sum_nats") is not None]

        def of_row(row: Row) -> Iterator[Again]:
            allowed = rounding_allowed(self.rows, name, row["tokens_scored"])
            yield again(f"evaluate, {name}", row, row["loss_sum_nats"], total(self.tokens[row["example_id"]]), allowed)

        def in_fp32(row: Row) -> Iterator[Again]:
            computed = total(self.tokens[row["example_id"]])
            yield again(f"evaluate, {name} in fp32", row, row["fp32_loss_sum_nats"], computed)

        for apart, some, ask in ((name, rows, of_row), (f"{name}, fp32", exact, in_fp32)):
            yield Asked(KIND, some, ask, "nats per token", AUDITED[KIND], self.count), apart

    def _in_windows(self, model: PreTrainedModel, ids: list[int]) -> float:
        """A document behind an end-of-text token, in windows of which each predicts the next `length` tokens."""
        stream, total = [self.end, *ids], 0.0
        for first in range(0, len(stream) - 1, self.length):
            end = min(first + self.length, len(stream) - 1)
            total += token_losses(model, stream[max(0, end - self.length) : end + 1])[first - end :].sum().item()
        return total
