"""The texts of an attack as token ids, cut to what is attacked; and the tokens that an attacker may write.

An attack works on token ids and is reported as text. An id that the tokenizer would not give back for its own text
(half of a character, a token that is always merged, a padding row) stands for nothing that a person could type.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from storage.errors import BadInput
from tasks.attacks.scoring import Scored, Tokens, Victim, finite, targets
from tasks.language import model as language
from tasks.language.model import filled_up, reference_losses, until_the_end, written_before
from tasks.language.pairs import packed_pairs
from tasks.language.result import PackedPairs
from tasks.language.stages import LanguageExecution
from tasks.language.texts import Text, texts_of, tokenizer_of
from tasks.language.tokenizer import encode, text_of
from tasks.stage.numerics import device
from tasks.stage.run import StageInput

log = logging.getLogger("ratchet.attacks")


def usable_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary_size: int) -> torch.Tensor:
    """True for every id that may be written, bool [V]; V is the model's vocabulary, padding rows included.

    Not usable: special tokens, ids that the tokenizer does not know, and those that encoding their text does not give
    back, neither alone nor behind the first that is given back alone: sentencepiece puts a space in front of any text,
    so that a piece from inside a word never comes back alone, which is half of a Unigram vocabulary. Raises BadInput
    when fewer than two are left, which would be a broken tokenizer.
    """
    special = set(tokenizer.all_special_ids)
    known = [id_ for id_ in range(min(len(tokenizer), vocabulary_size)) if id_ not in special]
    usable = torch.zeros(vocabulary_size, dtype=torch.bool)

    def given_back(before: list[int]) -> list[int]:
        texts = (text_of(tokenizer, [*before, id_]) for id_ in known)
        return [id_ for id_, again in zip(known, encode(tokenizer, texts), strict=True) if again == [*before, id_]]

    alone = given_back([])
    usable[[*alone, *given_back(alone[:1])]] = True
    if usable.sum() < 2:
        raise BadInput("the tokenizer gives back none of its tokens when they are decoded and encoded: repair it")
    log.info("an attacker may write %d of %d tokens", usable.sum(), len(known))
    return usable


MIN_TOKENS = 2
"""A shorter text leaves nothing to score once a token is replaced."""


def attacked_texts(setup: StageInput, split: str, tokens: int, documents: int | None = None) -> list[Text]:
    """The first `tokens` tokens of the first `documents` documents of a split, the same for every model.

    The end is cut, never the beginning, so nothing that stands in front is lost. Of pairs the articles are attacked.
    BadInput for a document with fewer than two tokens: none is left out in silence.
    """
    texts = [replace(text, tokens=text.tokens[:tokens]) for text in texts_of(setup, split, documents)]
    for text in texts:
        if len(text) < MIN_TOKENS:
            raise BadInput(
                f"the document {text.text[:40]!r} of split {split} (source {text.source}) has {len(text)} token, which "
                "cannot be attacked: take it out of the text"
            )
    return texts


def victim(setup: StageInput, model: Path, execution: LanguageExecution) -> Victim:
    """The model in this folder, ready to be attacked as the study's text is read, and judged in fp32."""
    return victim_of(language.load(model).to(device(execution)), setup, execution)


def victim_of(model: PreTrainedModel, setup: StageInput, execution: LanguageExecution) -> Victim:
    how = (model, tokenizer_of(setup).eos_token_id, execution.attack_batch_examples)
    packed = packed_pairs(setup.path / "text")
    return PairVictim(*how, packed=packed) if packed else Victim(*how)


@dataclass
class PairVictim(Victim):
    """A model that reads the prefix, what an attacker wrote, the article and an end, and is asked for the reference.

    Suffixes: B sequences, L tokens of the longest article, S of the longest reference, V vocabulary, D width.

    Prefixes are an attacker's: they stand behind the study's own. Nothing is ever cut; every candidate changes all
    states of the encoder, so that none is kept from one to the next.
    """

    packed: PackedPairs = field(kw_only=True)

    def _losses(
        self, rows: Sequence[int], prefixes: Tokens, texts: Tokens, scored: Scored | None
    ) -> Sequence[torch.Tensor]:
        read_BL, references_BS = self._read(rows, prefixes, texts), self._references(rows, texts)
        losses_BS = reference_losses(self.model, read_BL, references_BS, self.packed.end_of_text_id)
        return [own_S[: len(targets(texts[row]))] for own_S, row in zip(finite(losses_BS), rows, strict=True)]

    def _gradients(self, rows: Sequence[int], prefixes: Tokens, texts: Tokens, scored: Scored) -> list[torch.Tensor]:
        read_BL, references_BS = self._read(rows, prefixes, texts), self._references(rows, texts)
        embedded_BLD = self.embeddings_VD[read_BL].detach().requires_grad_()
        own, end = len(self.packed.prefix_ids), self.packed.end_of_text_id
        ends = [own + len(prefixes[row]) + len(texts[row]) for row in rows]
        wanted_BS = until_the_end(references_BS, end).bool()
        logits_BSV = self.model(
            inputs_embeds=self.cast(embedded_BLD),
            attention_mask=until_the_end(read_BL, end),
            decoder_input_ids=written_before(self.model, references_BS),
            use_cache=False,
        ).logits
        losses_N = nn.functional.cross_entropy(
            logits_BSV[wanted_BS].float(), references_BS[wanted_BS], reduction="none"
        )
        losses_N.sum().backward()
        assert embedded_BLD.grad is not None
        return [own_LD[own:end] for own_LD, end in zip(embedded_BLD.grad, ends, strict=True)]

    def _read(self, rows: Sequence[int], prefixes: Tokens, texts: Tokens) -> torch.Tensor:
        """What the encoder reads, filled up on the right."""
        packed = self.packed
        read = [[*packed.prefix_ids, *prefixes[row], *texts[row], packed.end_of_text_id] for row in rows]
        return filled_up(read, packed.padding_id).to(self.device)

    def _references(self, rows: Sequence[int], texts: Tokens) -> torch.Tensor:
        references = [targets(texts[row]) for row in rows]
        return filled_up(references, self.packed.padding_id).to(self.device)
