"""Scores beside brute force: gradients by autograd, one example at a time, and a matrix that is inverted whole."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from storage.errors import BadInput, CheckFailed
from tasks.influence.factors import compute_factors
from tasks.influence.plan import Limits, factor_plan
from tasks.influence.scores import gathered, scores
from tasks.influence.task import Task, token_losses
from tasks.poison.audit import divided
from tests.tasks.influence.models import (
    HERE,
    by_layer,
    classifier,
    diagonal,
    everything,
    factors,
    gradients_by_autograd,
    language,
    planned,
)

QUERIES = np.arange(7)


def _all(task: Task, folder: Path, **options: object) -> torch.Tensor:
    return gathered(scores(task, task, everything(task), QUERIES, folder, **options))


def _solved(gradients: torch.Tensor, matrix: torch.Tensor, damping: float) -> torch.Tensor:
    """Scores [7, N] of gradients [N, elements] by the whole inverse of `matrix` [elements, elements]."""
    inverse = torch.linalg.inv(matrix + damping * torch.eye(len(matrix), dtype=matrix.dtype))
    return gradients[QUERIES] @ inverse @ gradients.T


def _correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])


@pytest.mark.parametrize("damping", [None, 1e-3])
def test_where_the_fisher_is_a_product_ekfac_is_its_inverse(tmp_path, damping):
    torch.manual_seed(0)
    inputs, targets = (part.double() for part in (torch.randn(6, 4), torch.randn(5, 3)))
    pairs = torch.cartesian_prod(torch.arange(6), torch.arange(5))  # inputs and gradients are independent
    task = Task(
        nn.Linear(4, 3).double(),
        30,
        lambda indices: pairs[indices],
        lambda model, batch, _: (model(inputs[batch[:, 0]]) * targets[batch[:, 1]]).sum(1),
    )
    gradients = torch.cat([*gradients_by_autograd(task).values()], 1)
    fisher = gradients.T @ gradients / 30
    by_hand = _solved(gradients, fisher, 0.1 * float(fisher.diagonal().mean()) if damping is None else damping)
    assert torch.allclose(_all(task, factors(task, tmp_path), damping=damping), by_hand, rtol=1e-6)


def test_on_a_classifier_ekfac_is_nearer_to_the_inverse_than_what_has_less_curvature(tmp_path):
    task = classifier(examples=200)
    layers = by_layer(task)
    fishers = [gradients.T @ gradients / 200 for gradients in layers]
    dampings = [0.1 * float(fisher.diagonal().mean()) for fisher in fishers]
    by_hand = torch.stack([_solved(*each) for each in zip(layers, fishers, dampings, strict=True)]).sum(0)
    compute_factors(task, everything(task), tmp_path / "diagonal", diagonal(task), labels="true")
    ekfac, worse = _all(task, factors(task, tmp_path / "ekfac")), _all(task, tmp_path / "diagonal")
    identity = gathered(scores(task, task, everything(task), QUERIES, planned(task)))
    found = [_correlation(each, by_hand) for each in (ekfac, worse, identity)]
    assert found[0] > 0.97 and found[0] > found[1] + 0.02 and found[0] > found[2] + 0.02, found


def test_with_drawn_labels_lambda_sums_to_the_trace_of_the_gauss_newton_matrix(tmp_path):
    task = classifier()
    draws = np.tile(everything(task), 50)
    found = compute_factors(task, draws, tmp_path, planned(task), batch=100)
    inputs, _ = task.batch(everything(task))
    parameters = dict(task.model.named_parameters())
    jacobian = torch.func.jacrev(lambda weights: torch.func.functional_call(task.model, weights, (inputs,)))(parameters)
    chance = task.model(inputs).detach().softmax(-1)
    curvature = torch.diag_embed(chance) - chance[:, :, None] * chance[:, None]
    for one, plan in zip(found, planned(task), strict=True):
        layer = torch.cat([jacobian[f"{one.name}.{part}"].detach().flatten(2) for part in ("weight", "bias")], 2)
        trace = float(torch.einsum("nce,ncd,nde->n", layer, curvature, layer).mean())
        assert one.mean_lambda is not None and one.mean_lambda * plan.rows * plan.columns == pytest.approx(
            trace, rel=0.1
        )


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_without_curvature_scores_are_products_of_autograd_s_gradients_and_tied_weights_count_once(tied):
    task = language(tied)
    by_hand = torch.cat([*gradients_by_autograd(task).values()], 1)
    found = gathered(scores(task, task, everything(task), QUERIES, planned(task)))
    assert torch.allclose(found, by_hand[QUERIES] @ by_hand.T, rtol=1e-6)


def test_the_diagonal_is_the_mean_squared_gradient(tmp_path):
    task = language(tied=True)
    compute_factors(task, everything(task), tmp_path, diagonal(task), labels="true")
    gradients = torch.cat([*gradients_by_autograd(task).values()], 1)
    by_hand = (gradients[QUERIES] / (gradients.square().mean(0) + 1e-3)) @ gradients.T
    assert torch.allclose(_all(task, tmp_path, damping=1e-3), by_hand, rtol=1e-6)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_text_alone_and_padded_on_the_left_in_a_batch_has_one_score(tmp_path, tied):
    task = language(tied)
    alone = _all(task, factors(task, tmp_path / "alone", batch=1), batch=1)
    together = _all(task, factors(task, tmp_path / "together", batch=12), batch=12)
    assert torch.allclose(alone, together, rtol=1e-6)


def test_padding_that_is_not_said_to_be_padding_would_change_the_factors(tmp_path):
    task = language()
    counting = replace(task, positions=lambda tokens, module: None)
    apart = [_all(counting, factors(counting, tmp_path / str(batch), batch=batch), batch=batch) for batch in (1, 12)]
    assert not torch.allclose(*apart, rtol=1e-3)


def test_scores_in_little_memory_are_the_same_in_more_blocks(tmp_path):
    task = language()
    factors(task, tmp_path)
    blocks = [*scores(task, task, everything(task), QUERIES, tmp_path, batch=5, memory_bytes=10_000)]
    assert {tuple(of.shape) for *_, of in blocks} == {(3, 5), (3, 2), (1, 5), (1, 2)}
    assert torch.allclose(gathered(blocks), _all(task, tmp_path), rtol=1e-6)
    little = factors(task, tmp_path / "little", memory_bytes=1_000)
    assert torch.allclose(_all(task, little), _all(task, tmp_path), rtol=1e-6)


def test_the_scores_of_a_mean_are_the_mean_of_scores_in_one_pass_over_the_training_examples(tmp_path):
    task, passes, groups = language(), list[int](), [np.arange(5), np.arange(3, 7)]
    factors(task, tmp_path)
    for options in ({}, {"memory_bytes": 4_000}):
        found = gathered(scores(task, task, everything(task), groups, tmp_path, batch=3, **options))
        each = _all(task, tmp_path)
        assert torch.allclose(found, torch.stack([each[group].mean(0) for group in groups]), rtol=1e-5)
    counting = replace(task, batch=lambda indices: (passes.append(len(indices)), task.batch(indices))[1])
    [*scores(counting, task, everything(task), groups, tmp_path, batch=3)]
    assert sum(passes) == task.size


def test_queries_of_another_model_are_refused():
    first, second = classifier(seed=1), classifier(seed=2)
    with pytest.raises(BadInput, match="another model"):
        [*scores(first, second, QUERIES, QUERIES, planned(first))]


def _summaries() -> Task:
    """A small T5 on texts padded on the right, of other lengths than their targets."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    model = T5ForConditionalGeneration(
        T5Config(**sizes, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    ).double()
    pairs = [(torch.randint(2, 20, (4 + at % 3,)), torch.randint(2, 20, (2 + at % 4,))) for at in range(8)]

    def padded(texts: list[torch.Tensor]) -> torch.Tensor:
        longest = max(map(len, texts))
        return torch.stack([functional.pad(text, (0, longest - len(text))) for text in texts])

    def losses(network: nn.Module, batch: tuple[torch.Tensor, ...], draw: torch.Generator | None) -> torch.Tensor:
        source, target = batch
        labels = target.masked_fill(target == 0, -100)
        logits = network(input_ids=source, attention_mask=(source != 0).long(), labels=labels).logits
        return token_losses(logits, labels, draw)

    def positions(batch: tuple[torch.Tensor, ...], module: str) -> torch.Tensor:
        source, target = batch
        reads_source = module.startswith("encoder") or ".EncDecAttention.k" in module or ".EncDecAttention.v" in module
        return source != 0 if reads_source else target != 0

    return Task(
        model, 8, lambda at: (padded([pairs[i][0] for i in at]), padded([pairs[i][1] for i in at])), losses, positions
    )


def test_an_encoder_decoder_has_one_score_alone_and_in_a_batch(tmp_path):
    task, found = _summaries(), []
    limits = {"exclude": ["*relative_attention_bias"]}
    for batch in (1, 8):
        compute_factors(
            task, everything(task), tmp_path / str(batch), planned(task, **limits), labels="true", batch=batch
        )
        found.append(_all(task, tmp_path / str(batch), batch=batch))
    assert torch.allclose(*found, rtol=1e-6)
    with pytest.raises(CheckFailed, match=r"rows of encoder\S*relative_attention_bias.*exclude the module"):
        compute_factors(task, everything(task), tmp_path / "all", planned(task))
    wrong = replace(task, positions=lambda batch, module: batch[0] != 0)
    with pytest.raises(CheckFailed, match=r"positions of decoder.*answer by the module's name"):
        compute_factors(wrong, everything(task), tmp_path / "wrong", planned(task, **limits))


@pytest.mark.parametrize("solves", [None, 70], ids=["whole", "blocks"])
def test_curvature_by_numpy_from_the_files_gives_the_same_scores(tmp_path, solves):
    task = classifier(width=140)
    plan = factor_plan(task.model, replace(HERE, solves=solves), Limits())
    assert {one.treatment for one in plan} == {"blocks" if solves else "ekfac"}
    compute_factors(task, everything(task), tmp_path, plan, labels="true")
    expected, layers = _all(task, tmp_path), by_layer(task)
    own = []
    for row in range(task.size):
        flat = {
            one.name: of[row].double().split([one.rows * (one.columns - 1), one.rows])
            for one, of in zip(plan, layers, strict=True)
        }
        own.append(
            {
                name: torch.cat([weight.view(len(bias), -1), bias[:, None]], 1).numpy()
                for name, (weight, bias) in flat.items()
            }
        )
    found = [[sum(float((query[name] * of[name]).sum()) for name in query) for of in own] for query in (
        divided(own[row], tmp_path, None) for row in QUERIES
    )]  # fmt: skip
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    spoilt = tmp_path / f"{plan[0].name}.json"
    spoilt.write_text(spoilt.read_text().replace('"blocks"' if solves else '"ok"', '"no_curvature"'))
    assert [*divided(own[0], tmp_path, None)] == [one.name for one in plan[1:]]
