"""evaluate: how well every model predicts and writes the summaries of the test split, beside what needs no model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from storage.records import Rows
from tasks.attacks.stages import KEY_COLUMNS
from tasks.language import model as language
from tasks.language.texts import Text, texts_of, tokenizer_of
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.stages import EvaluateConfig, WritingConfig
from tasks.summarisation.words import METRICS, lead_words, pieces, sentences, words

DOCUMENTS_IN_A_PART = 32


def evaluate(run: StageRun, config: EvaluateConfig, text: StageInput, **models: StageInput) -> dict[str, object]:
    """Writes one record for each model and test pair, with the summary that was written and its scores.

    Every row has beside them what needs no model: the first words of the article, as many as summaries have on average,
    and the summary of the next article.
    """
    tokenizer = tokenizer_of(text)
    pairs = texts_of(text, "test")
    lead, others = lead_words([pair.summary for pair in pairs]), [*pairs[1:], pairs[0]]
    trivial = [beside(pair, other, lead) for pair, other in zip(pairs, others, strict=True)]
    numbers = list(range(len(pairs)))
    parts = [numbers[first : first + DOCUMENTS_IN_A_PART] for first in numbers[::DOCUMENTS_IN_A_PART]]
    keys: list[str] = []
    with run.watched(config.execution.stall_minutes):
        for done, (name, stage) in enumerate(models.items()):
            writer = functools.cache(functools.partial(Writer.of, stage.path / "model", tokenizer, config))

            def rows(part: list[int], name: str = name, writer: Callable[[], Writer] = writer) -> Rows:
                here, theirs = [pairs[number] for number in part], [others[number] for number in part]
                loaded: Writer = writer()
                own, another = loaded.losses(here, here), loaded.losses(here, theirs)
                return [
                    {
                        "model": name,
                        "example_id": pair.example_id,
                        "source": pair.source,
                        "tokens_scored": len(pair.reference),
                        "loss_sum_nats": own[place],
                        "another_tokens_scored": len(other.reference),
                        "another_loss_sum_nats": another[place],
                        "written": written,
                        **scores("", pair.summary, written),
                        "copied_share": copied(written, pair.article),
                        **trivial[part[place]],
                    }
                    for place, (pair, other, written) in enumerate(
                        zip(here, theirs, loaded.write([pair.read for pair in here]), strict=True)
                    )
                ]

            keys += run.each(parts, rows, "parts", name, f"{name}-", done * len(parts), len(models) * len(parts))
    run.merge_records(keys, KEY_COLUMNS)
    return {}


class Writer:
    """A model that predicts and writes summaries, some pairs at a time."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: WritingConfig) -> None:
        self.model, self.tokenizer, self.config = model.eval(), tokenizer, config
        self.batch = config.execution.evaluation_batch_examples

    @classmethod
    def of(cls, folder: Path, tokenizer: PreTrainedTokenizerBase, config: WritingConfig) -> Writer:
        return cls(language.load(folder).to(device(config.execution)), tokenizer, config)

    @torch.no_grad()
    def losses(self, articles: Sequence[Text], summaries: Sequence[Text]) -> list[float]:
        """Loss of each summary behind each article, summed over its tokens, in nats."""
        sums: list[float] = []
        for first in range(0, len(articles), self.batch):
            some = slice(first, first + self.batch)
            read = self._filled([pair.read for pair in articles[some]])
            asked = self._filled([pair.reference for pair in summaries[some]])
            losses_BS = language.reference_losses(self.model, read, asked, self.tokenizer.eos_token_id)
            sums += losses_BS.double().sum(dim=1).tolist()
        return sums

    @torch.no_grad()
    def write(self, articles: Sequence[list[int]]) -> list[str]:
        """A summary of each article, which are token ids as a model reads them, by transformers' beam search."""
        texts, how, ids_of = [], self.config.decoding, self.model.config
        self.model.generation_config = GenerationConfig(  # and nothing that a pretrained model's own says
            num_beams=how.beams,
            length_penalty=how.length_penalty,
            min_new_tokens=how.min_tokens,
            max_new_tokens=self.config.summary_tokens,
            no_repeat_ngram_size=how.no_repeat_tokens,
            decoder_start_token_id=ids_of.decoder_start_token_id,
            eos_token_id=ids_of.eos_token_id,
            pad_token_id=ids_of.pad_token_id,
        )
        for first in range(0, len(articles), self.batch):
            read = self._filled(articles[first : first + self.batch])
            attended = language.until_the_end(read, self.tokenizer.eos_token_id)
            tokens = self.model.generate(input_ids=read, attention_mask=attended)
            texts += [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        return texts

    def _filled(self, sequences: Sequence[list[int]]) -> torch.Tensor:
        fill = self.tokenizer.eos_token_id if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        return language.filled_up(sequences, fill).to(next(self.model.parameters()).device)


def beside(pair: Text, other: Text, lead: int) -> dict[str, float]:
    """Scores of what needs no model: the first words of the article, and the summary of another one."""
    first = " ".join(pieces(pair.article)[:lead])
    return scores("lead_", pair.summary, first) | scores("other_summary_", pair.summary, other.summary)


def scores(name: str, reference: str, written: str) -> dict[str, float]:
    """ROUGE F1 by rouge-score, of words and sentences in any script; metric, behind `name` -> from 0 to 1."""
    both = ("\n".join(sentences(text)) for text in (reference, written))
    return {f"{name}{metric}": score.fmeasure for metric, score in _scorer().score(*both).items()}


@functools.cache
def _scorer() -> Any:
    from absl import logging
    from rouge_score.rouge_scorer import RougeScorer

    # absl closes the stream that it found as stderr, unless it is this one, when Python's logging is set up anew
    logging.get_absl_handler().python_handler.stream = sys.__stderr__
    return RougeScorer(METRICS, tokenizer=SimpleNamespace(tokenize=words))


def copied(written: str, article: str) -> float:
    """Share of the pairs of neighbouring words of a summary that stand in its article; 0 of one without any."""
    own, theirs = pieces(written.lower()), pieces(article.lower())
    pairs, known = list(pairwise(own)), set(pairwise(theirs))
    return sum(pair in known for pair in pairs) / len(pairs) if pairs else 0.0
