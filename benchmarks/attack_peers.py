"""How others search, for benchmarks/attacks.py: nanoGCG's own code, and two loops written from the papers.

Each yields, after every step, what it spent in forwards (a backward counts as two, as in tasks/attacks), the highest
loss that it has found, in nats per scored token, and the tokens that it holds. Shape suffixes as in tasks/attacks.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tasks.attacks.scoring import replaced

IGNORED = -100
"""The label of a token that is not scored."""

Curve = Iterator[tuple[int, float, list[int]]]


def nanogcg(
    model: Any, end: int, trigger: list[int], text: list[int], usable_V: torch.Tensor, candidates: int, seed: int
) -> Curve:
    """GCG (Zou et al. 2023) by nanoGCG's own gradient, sampling and candidate losses, in the order of its `run`.

    It makes a target likely; with the sign of gradient and loss turned it makes the text unlikely. Left out, as it
    would cost it time: re-tokenising every candidate. Its prefix cache is broken by present transformers, and has
    nothing to hold here: in front of the trigger stands one token.
    """
    from nanogcg.gcg import GCG, GCGConfig, sample_ids_from_grad
    from nanogcg.utils import find_executable_batch_size

    torch.manual_seed(seed)
    config = GCGConfig(search_width=candidates, use_prefix_cache=False, filter_ids=False, allow_non_ascii=True)
    gcg = GCG(model, SimpleNamespace(chat_template="none"), config)
    ids_1L, forbidden = torch.tensor([trigger], device=model.device), (~usable_V).nonzero().flatten()
    gcg.target_ids = torch.tensor([text], device=model.device)
    before_1L = torch.tensor([[end]], device=model.device)
    gcg.before_embeds, gcg.target_embeds = gcg.embedding_layer(before_1L), gcg.embedding_layer(gcg.target_ids)
    gcg.after_embeds, best, spent = gcg.before_embeds[:, :0], 0.0, 0
    while True:
        gradient_TV = -gcg.compute_token_gradient(ids_1L).squeeze(0)
        with torch.no_grad():
            tried_BT = sample_ids_from_grad(
                ids_1L.squeeze(0), gradient_TV, candidates, min(config.topk, int(usable_V.sum())), 1, forbidden
            )
            around = (part.repeat(len(tried_BT), 1, 1) for part in (gcg.before_embeds, gcg.target_embeds))
            before_BLD, target_BLD = around
            embedded_BLD = torch.cat([before_BLD, gcg.embedding_layer(tried_BT), target_BLD], dim=1)
            losses = find_executable_batch_size(gcg._compute_candidates_loss_original, len(tried_BT))(embedded_BLD)
        ids_1L = tried_BT[losses.argmax()].unsqueeze(0)
        best, spent = max(best, float(losses.max())), spent + 3 + candidates
        yield spent, best, ids_1L.squeeze(0).tolist()


def wallace(
    model: Any,
    end: int,
    trigger: list[int],
    batches: Iterable[Sequence[Sequence[int]]],
    usable_V: torch.Tensor,
    candidates: int,
) -> Curve:
    """Wallace et al. (2019), in the manner of their `get_best_candidates` with a beam of one.

    One gradient over the texts of a batch ranks the tokens for every position. Position after position, behind what was
    kept before it: one forward pass for the trigger as it is and one for each of the best; the best of these is kept.
    Then the next batch. The trigger is masked out of the loss. It yields after every position.
    """
    embeddings_VD, spent = model.get_input_embeddings().weight, 0
    for texts in batches:
        tokens_BL, labels_BL = _behind(end, trigger, texts, model.device)
        embedded_BLD = embeddings_VD[tokens_BL].detach().requires_grad_()
        model(inputs_embeds=embedded_BLD, labels=labels_BL).loss.backward()
        gradient_TD = embedded_BLD.grad[:, 1 : 1 + len(trigger)].mean(0)
        effects_TV = (gradient_TD @ embeddings_VD.T).masked_fill(~usable_V.to(model.device), -torch.inf)
        spent += 3 * len(texts)
        for position, best in enumerate(effects_TV.topk(candidates).indices.tolist()):
            tried, losses = [trigger, *(replaced(trigger, position, token) for token in best)], []
            for ids in tried:
                tokens_BL, labels_BL = _behind(end, ids, texts, model.device)
                with torch.no_grad():
                    losses.append(model(input_ids=tokens_BL, labels=labels_BL).loss.item())
            trigger = tried[int(np.argmax(losses))]
            spent += len(tried) * len(texts)
            yield spent, max(losses), trigger


def _behind(
    end: int, trigger: list[int], texts: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts behind a trigger, filled up on the right, and their labels: the texts' own tokens."""
    fill, front = max(map(len, texts)), [end, *trigger]
    tokens = [[*front, *text, *[end] * (fill - len(text))] for text in texts]
    labels = [[*[IGNORED] * len(front), *text, *[IGNORED] * (fill - len(text))] for text in texts]
    return torch.tensor(tokens, device=device), torch.tensor(labels, device=device)


def textattack(
    model: Any,
    end: int,
    text: list[int],
    writable: list[int],
    usable_V: torch.Tensor,
    candidates: int,
    flips: int,
    batch: int,
) -> Curve:
    """In the manner of TextAttack's `word_swap_gradient_based` under its greedy search.

    The estimates of every position and token are sorted as a whole; the best are evaluated in batches, all logits of
    each; the best is kept if it is better. After so many `flips` only what was replaced is replaced again.
    """
    embeddings_VD, now = model.get_input_embeddings().weight, list(text)

    def losses_of(variants: list[list[int]]) -> list[float]:
        tokens_BL = torch.tensor([[end, *variant] for variant in variants], device=model.device)
        labels_BL = tokens_BL.clone()
        labels_BL[:, [0, *(1 + place for place in writable)]] = IGNORED
        with torch.no_grad():
            logits_BLV = model(input_ids=tokens_BL).logits[:, :-1]
        losses_BL = torch.nn.functional.cross_entropy(
            logits_BLV.flatten(0, 1), labels_BL[:, 1:].flatten(), reduction="none", ignore_index=IGNORED
        )
        return (losses_BL.view(len(variants), -1).sum(1) / (len(text) - len(writable))).tolist()

    best, spent = losses_of([now])[0], 1
    while True:
        changed = [place for place in writable if now[place] != text[place]]
        places = changed if len(changed) == flips else writable
        tokens_1L = torch.tensor([[end, *now]], device=model.device)
        labels_1L = tokens_1L.clone()
        labels_1L[:, [0, *(1 + place for place in writable)]] = IGNORED
        embedded_1LD = embeddings_VD[tokens_1L].detach().requires_grad_()
        model(inputs_embeds=embedded_1LD, labels=labels_1L).loss.backward()
        gradient_PD = embedded_1LD.grad[0, [1 + place for place in places]].cpu()
        here_P = [now[place] for place in places]
        table_VD = embeddings_VD.detach().cpu()
        effects_PV = gradient_PD @ table_VD.T - (gradient_PD * table_VD[here_P]).sum(1, keepdim=True)
        tried = []
        for index in (-effects_PV).flatten().argsort().tolist():
            place, token = places[index // len(usable_V)], index % len(usable_V)
            if usable_V[token] and token != now[place]:
                tried.append(replaced(now, place, token))
            if len(tried) == candidates:
                break
        losses = [loss for first in range(0, candidates, batch) for loss in losses_of(tried[first : first + batch])]
        if max(losses) > best:
            best, now = max(losses), tried[int(np.argmax(losses))]
        spent += 3 + candidates
        yield spent, best, now
