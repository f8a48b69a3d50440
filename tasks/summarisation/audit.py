"""audit: what the records say of every model, asked of `model/` again; see `tasks.attacks.audit`.

Summaries are written again by transformers' `generate`, one at a time without padding. Their scores, and those that
need no model, are all computed again.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from storage.errors import require, require_each_once, require_equal
from tasks.attacks.audit import HOW, Row, Stages, again, ask_models, summary_loss
from tasks.attacks.reading import records_of
from tasks.attacks.stages import JUDGED
from tasks.findings.audit import Again, Asked, Audited, AuditResult
from tasks.language.texts import Text, texts_of, tokenizer_of
from tasks.language.tokenizer import encode
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.evaluate import beside, copied, scores
from tasks.summarisation.rewrite import attacked
from tasks.summarisation.stages import AUDITED, AuditConfig
from tasks.summarisation.words import lead_words, words


def audit(
    run: StageRun,
    config: AuditConfig,
    text: StageInput,
    evaluation: StageInput,
    rewritten: StageInput,
    **inputs: StageInput,
) -> AuditResult:
    """CheckFailed names the first model and pair whose number is another one than that of its record.

    `inputs` are the models and starts, and their attacks as `uat-...` and `hotflip-...`.
    """
    audited = Audited(run, HOW.format(device(config.execution).type))
    asks = _Summaries(config, text, inputs, records_of(evaluation), records_of(rewritten))
    ask_models(run, config, text, inputs, audited, asks.asked)
    for asked in (asks.scores_of_tests(), asks.scores_of_attacked()):
        audited.ask(asked)
    return audited.result()


class _Summaries:
    """The losses and scores of summaries, of test pairs and of attacked ones."""

    def __init__(
        self, config: AuditConfig, text: StageInput, inputs: Stages, evaluated: list[Row], rewritten: list[Row]
    ) -> None:
        self.config, self.text, self.given, self.tokenizer = config, text, inputs, tokenizer_of(text)
        self.evaluated, self.rewritten = evaluated, rewritten
        self.test = texts_of(text, "test")
        self.places = {pair.example_id: place for place, pair in enumerate(self.test)}
        self.judged = {pair.example_id: pair for pair in texts_of(text, JUDGED)}

    def asked(self, name: str, model: PreTrainedModel) -> Iterator[tuple[Asked[Any], str]]:
        count, unit = self.config.audit.examples, "nats per token"
        rows = [row for row in self.evaluated if row["model"] == name]
        yield Asked("test losses", rows, partial(self._loss, name, model), unit, AUDITED["test losses"], count), name
        written = partial(self._written, name, model)
        yield Asked("summaries", rows, written, "of agreement", AUDITED["summaries"], count), name
        if name in self.config.attacked:
            changed = {
                (attacked_text.attack, attacked_text.pair.example_id): attacked_text
                for attacked_text in attacked(self.config, self.text, self.given, name)
            }
            known = {(row["attack"], row["example_id"]): row for row in self.rewritten if row["model"] == name}
            require_each_once(f"{name} wrote of every attacked article", known, changed)
            both = [(attacked_text, known[key]) for key, attacked_text in changed.items()]
            of_attacked = partial(self._attacked, name, model)
            asked = Asked("summaries", both, of_attacked, "of agreement", AUDITED["summaries"], count)
            yield asked, f"{name}, attacked"

    def _pairs(self, row: Row) -> tuple[Text, Text]:
        """A test pair, and the next one."""
        known = row["example_id"] in self.places
        require(known, "evaluate scored test pairs", row["example_id"], "the id of one")
        place = self.places[row["example_id"]]
        return self.test[place], self.test[(place + 1) % len(self.test)]

    def _loss(self, name: str, model: PreTrainedModel, row: Row) -> Iterator[Again]:
        pair, other = self._pairs(row)
        yield again(f"evaluate, {name}", row, row["loss_sum_nats"], summary_loss(model, pair.read, pair.reference))
        another = summary_loss(model, pair.read, other.reference)
        scored = row | {"tokens_scored": len(other.reference)}
        yield again(f"another summary, {name}", scored, row["another_loss_sum_nats"], another)
        require_equal("the tokens of another summary", row["another_tokens_scored"], len(other.reference))

    def _written(self, name: str, model: PreTrainedModel, row: Row) -> Iterator[Again]:
        pair, _ = self._pairs(row)
        what = f"the summary that {name} writes of {pair.example_id[:12]}"
        yield as_good(model, self.tokenizer, self.config, what, pair.read, row["written"])

    def _attacked(self, name: str, model: PreTrainedModel, both: Any) -> Iterator[Again]:
        attacked_text, row = both
        what = f"the summary of {attacked_text.pair.example_id[:12]} by {name} under {attacked_text.attack}"
        good = partial(as_good, model, self.tokenizer, self.config)
        yield good(what, attacked_text.read, row["written"])
        yield good(f"{what}, which did not", attacked_text.clean, row["clean_written"])

    def scores_of_tests(self) -> Asked[Row]:
        """Those of all test pairs, and those that need no model."""
        lead = lead_words([pair.summary for pair in self.test])

        def of_row(row: Row) -> Iterator[Again]:
            pair, other = self._pairs(row)
            computed = scores("", pair.summary, row["written"]) | beside(pair, other, lead)
            computed |= {"copied_share": copied(row["written"], pair.article)}
            yield from _scored(row, computed, f"{row['model']} on {pair.example_id[:12]}")
            yield Again(f"rouge1 of {pair.example_id[:12]}", row["rouge1"], rouge1(pair.summary, row["written"]))

        return Asked("scores", self.evaluated, of_row, "of ROUGE or a share", AUDITED["scores"])

    def scores_of_attacked(self) -> Asked[Row]:
        def of_row(row: Row) -> Iterator[Again]:
            known = row["example_id"] in self.judged
            require(known, "rewrite wrote of attacked pairs", row["example_id"], "one of them")
            summary = self.judged[row["example_id"]].summary
            computed = scores("", summary, row["written"]) | scores("clean_", summary, row["clean_written"])
            yield from _scored(row, computed, f"{row['attack']} on {row['model']}, {row['example_id'][:12]}")

        return Asked("scores", self.rewritten, of_row, "of ROUGE or a share", AUDITED["scores"])


def _scored(row: Row, computed: dict[str, float], where: str) -> Iterator[Again]:
    for column, score in computed.items():
        yield Again(f"{column} of {where}", row[column], score)


def as_good(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: AuditConfig,
    what: str,
    ids: list[int],
    kept: str,
) -> Again:
    """The text that the model writes alone, or one of the same score: rounding decides a tie."""
    if (written := alone(model, tokenizer, config, ids)) == kept:
        return Again(what, 1.0, 1.0)
    both = ([*own, tokenizer.eos_token_id] for own in encode(tokenizer, [written, kept]))
    best, own = (summary_loss(model, ids, one) / len(one) ** config.decoding.length_penalty for one in both)
    return Again(f"{what} ({kept!r} is kept, {written!r} is written)", own, best)


def alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: AuditConfig, ids: list[int]) -> str:
    """What a model writes of one article, in a batch of its own without padding."""
    read = torch.tensor([ids])
    how, ids_of = config.decoding, model.config
    model.generation_config = GenerationConfig(  # a pretrained model's own may say more
        decoder_start_token_id=ids_of.decoder_start_token_id,
        eos_token_id=ids_of.eos_token_id,
        pad_token_id=ids_of.pad_token_id,
    )
    (tokens,) = model.generate(
        input_ids=read.to(next(model.parameters()).device),
        num_beams=how.beams,
        length_penalty=how.length_penalty,
        no_repeat_ngram_size=how.no_repeat_tokens,
        min_new_tokens=how.min_tokens,
        max_new_tokens=config.summary_tokens,
    )
    return str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()


def rouge1(reference: str, written: str) -> float:
    """ROUGE-1 F1 by its definition: words in common, each as often as both have it."""
    asked, counted = (Counter(words(text)) for text in (reference, written))
    common = (asked & counted).total()
    return 2 * common / (asked.total() + counted.total()) if common else 0.0
