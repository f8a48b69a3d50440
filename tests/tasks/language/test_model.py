"""Models: their losses, how they are kept, and when a base model counts as trained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from storage.errors import BadInput, CheckFailed
from tasks.language import model as language
from tasks.language.blocks import Blocks, pack
from tasks.study import FromScratch, PretrainedHub
from tasks.training.budget import Budget
from tests.tasks.language.hub_errors import FINAL, LOST, raising
from tests.tasks.tiny import bytes_are_equal, save_model, tiny_model


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """20 blocks of 8 tokens."""
    folder, chance = tmp_path_factory.mktemp("blocks"), np.random.default_rng(0)
    documents = [chance.integers(1, 61, size=19).tolist() for _ in range(8)]
    pack(folder, "train", documents, sequence_length=8, vocabulary_size=61, end_of_text=0)
    return Blocks(folder, "train")


# ----------------------------------------------------------------------------------------------- losses


def by_hand(model, tokens: list[int]) -> list[float]:
    """-log p of every token but the first, one forward pass a token, in double precision."""
    losses = []
    for place in range(1, len(tokens)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens[:place]])).logits[0, -1].double()
        losses.append((torch.logsumexp(logits, 0) - logits[tokens[place]]).item())
    return losses


def test_a_token_s_loss_is_minus_the_log_of_its_probability_after_the_tokens_before_it():
    model, tokens = tiny_model(), [3, 60, 0, 7, 7, 12, 1]
    with torch.no_grad():
        losses = language.token_losses(model, torch.tensor([tokens]))
        mean = language.block_losses(model, torch.tensor([tokens]))
    assert losses[0].tolist() == pytest.approx(by_hand(model, tokens), rel=1e-5)
    assert mean.tolist() == pytest.approx([sum(by_hand(model, tokens)) / 6], rel=1e-5)


def test_what_stands_to_the_right_changes_nothing():
    model = tiny_model()
    tokens = torch.tensor([[3, 60, 0, 7, 0, 0, 0], [3, 60, 0, 7, 50, 51, 52]])
    with torch.no_grad():
        losses = language.token_losses(model, tokens)
    assert torch.allclose(losses[0, :3], losses[1, :3], rtol=1e-5)
    assert not torch.allclose(losses[0, 3:], losses[1, 3:], rtol=1e-3)


@pytest.mark.parametrize("batch_size", [1, 3, 16, 1000])
def test_validation_loss_is_the_mean_over_all_predicted_tokens_whatever_the_batch(blocks, batch_size):
    model = tiny_model()
    with torch.no_grad():
        everything = language.token_losses(model, blocks[np.arange(len(blocks))])
    assert everything.shape == (20, 7)
    expected = everything.double().mean().item()
    model.gpt_neox.emb_dropout.p = 0.5  # which validation must not see
    model.train()
    assert language.validation_loss(model, blocks, batch_size) == pytest.approx(expected, rel=1e-6)


def test_unigram_loss_is_that_of_add_one_frequencies_on_the_predicted_tokens(blocks):
    counts = np.array([0, 3, 1] + [0] * 58)
    predicted = [token for i in range(len(blocks)) for token in blocks[np.array([i])][0].tolist()[1:]]
    total = 4 + 61
    probability = {0: 1 / total, 1: 4 / total, 2: 2 / total}
    expected = -np.mean([math.log(probability.get(token, 1 / total)) for token in predicted])
    assert language.unigram_loss(counts, blocks) == pytest.approx(expected, rel=1e-12)
    assert np.exp(-language.unigram_token_losses(counts)).sum() == pytest.approx(1.0)


# ----------------------------------------------------------------------------------------- save and load


def test_a_saved_model_loads_with_the_same_bytes_in_fp32(tmp_path):
    model = tiny_model()
    loaded = language.load(save_model(tmp_path / "model", model))
    assert set(loaded.state_dict()) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert bytes_are_equal(loaded.state_dict()[name], tensor), name
    assert loaded.dtype == torch.float32


def test_the_saved_folder_stands_on_its_own_with_the_tokenizer(tmp_path):
    folder = save_model(tmp_path / "model", tiny_model())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}


@pytest.mark.parametrize("clash", ["model.safetensors", "config.json"])
def test_a_tokenizer_folder_with_a_model_in_it_is_refused_and_overwrites_nothing(tmp_path, clash):
    """constrain once copied its base model's weights over its own, because both lay in one folder."""
    tokenizer, folder = tmp_path / "tokenizer", tmp_path / "model"
    tokenizer.mkdir()
    folder.mkdir()
    (tokenizer / clash).write_bytes(b"another model's")
    with pytest.raises(FileExistsError):
        language.save(tiny_model(), tokenizer, folder)
    assert (folder / clash).read_bytes() != b"another model's"


def test_saving_leaves_the_model_ready_to_train(tmp_path):
    model = tiny_model()
    save_model(tmp_path / "model", model)
    assert model.config.use_cache is False


@pytest.mark.parametrize(
    ("in_file", "in_model"),
    [
        ("gpt_neox.layers.1.mlp.dense_h_to_4h.weight", "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"),
        ("embed_out.weight", "lm_head.weight"),  # transformers keeps the name that GPT-NeoX checkpoints have
    ],
)
def test_a_folder_that_lacks_a_weight_is_bad_input_by_name(tmp_path, in_file, in_model):
    file = save_model(tmp_path / "model", tiny_model()) / "model.safetensors"
    tensors = load_file(file)
    del tensors[in_file]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(BadInput, match=rf"lacks weights \(1, such as {in_model}\)"):
        language.load(tmp_path / "model")


def test_a_weight_of_another_shape_is_bad_input(tmp_path):
    file = save_model(tmp_path / "model", tiny_model()) / "model.safetensors"
    tensors = load_file(file)
    tensors["embed_out.weight"] = tensors["embed_out.weight"][:-1].contiguous()
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(BadInput, match="model folder"):
        language.load(tmp_path / "model")


@pytest.mark.parametrize("damage", ["no config", "no weights", "no folder", "torn weights"])
def test_a_folder_that_is_no_model_is_bad_input_naming_it(tmp_path, damage):
    folder = save_model(tmp_path / "model", tiny_model())
    if damage == "no config":
        (folder / "config.json").unlink()
    elif damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "torn weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:2000])
    else:
        folder = tmp_path / "nowhere"
    with pytest.raises(BadInput, match=str(folder)):
        language.load(folder)


def test_weights_kept_in_bf16_are_loaded_as_fp32(tmp_path):
    loaded = language.load(save_model(tmp_path / "model", tiny_model().to(torch.bfloat16)))
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


# -------------------------------------------------------------------------------------------------- hub


@pytest.mark.parametrize(("name", "kind"), [(n, ConnectionError) for n in LOST] + [(n, BadInput) for n in FINAL])
def test_a_lost_connection_to_the_hub_is_told_from_what_no_retry_mends(tmp_path, monkeypatch, name, kind):
    monkeypatch.setattr(language.AutoModelForCausalLM, "from_pretrained", raising(name))
    with pytest.raises(kind) as caught:
        language.pretrained(PretrainedHub(model="nobody/nothing", revision="0" * 40), tmp_path)
    for part in ("nobody/nothing", "0" * 40, "HF_TOKEN", "model.source=directory"):
        assert part in str(caught.value)


# --------------------------------------------------------------------------------------- weights_digest


def test_the_weights_digest_is_equal_for_a_model_that_was_loaded_and_saved_again(tmp_path):
    first = save_model(tmp_path / "first", tiny_model())
    second = save_model(tmp_path / "second", language.load(first))
    assert language.weights_digest(first) == language.weights_digest(second)


def test_the_weights_digest_does_not_depend_on_how_files_are_cut(tmp_path):
    whole = save_model(tmp_path / "whole", tiny_model())
    shards = tmp_path / "shards"
    shards.mkdir()
    tiny_model().save_pretrained(shards, max_shard_size="4KB")
    assert len(list(shards.glob("*.safetensors"))) > 1
    assert language.weights_digest(shards) == language.weights_digest(whole)


@pytest.mark.parametrize("change", ["one bit", "name", "shape", "dtype", "missing"])
def test_the_weights_digest_sees_every_change(tmp_path, change):
    folder = save_model(tmp_path / "model", tiny_model())
    file = folder / "model.safetensors"
    before, tensors, name = language.weights_digest(folder), load_file(file), "gpt_neox.final_layer_norm.bias"
    if change == "one bit":
        tensors[name].view(torch.uint8)[0] ^= 1
    elif change == "name":
        tensors[name + "2"] = tensors.pop(name)  # at the same place of the name order
    elif change == "shape":
        tensors[name] = tensors[name].view(4, 4)
    elif change == "dtype":
        tensors[name] = tensors[name].view(torch.int32)  # the same bytes
    else:
        del tensors[name]
    save_file(tensors, file, {"format": "pt"})
    assert language.weights_digest(folder) != before


def test_the_weights_digest_takes_tensors_of_any_shape(tmp_path):
    tensors = {"scalar": torch.tensor(1.0), "empty": torch.zeros(0), "half": torch.ones(2, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    first = language.weights_digest(tmp_path)
    save_file(tensors | {"scalar": torch.tensor(2.0)}, tmp_path / "model.safetensors")
    assert language.weights_digest(tmp_path) != first


# ----------------------------------------------------------------------------------------- from scratch


def test_the_init_seed_decides_the_initial_weights():
    def weights(seed: int):
        return torch.cat([p.detach().flatten() for p in tiny_model(seed=seed).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_a_model_from_scratch_has_the_shape_it_was_asked_for():
    config = FromScratch(
        vocabulary_size=300,
        hidden_size=24,
        layers=3,
        attention_heads=4,
        feed_forward_size=40,
        pretraining=Budget(),
    )
    model = language.untrained(config, 77, 16)
    assert model.get_input_embeddings().weight.shape == (77, 24)
    assert len(model.gpt_neox.layers) == 3
    assert model.gpt_neox.layers[0].mlp.dense_h_to_4h.weight.shape == (40, 24)
    assert model.config.max_position_embeddings == 16


# -------------------------------------------------------------------------------------- require_trained


def test_a_trained_base_model_passes_and_its_ratios_are_told():
    losses = {"base": math.log(20), "unigram": math.log(100), "untrained": math.log(1000)}
    told = language.require_trained(losses, {"unigram": 0.25, "untrained": 0.05})
    assert told["validation_perplexity"] == pytest.approx({"base": 20, "unigram": 100, "untrained": 1000})
    assert told["ratio_of_perplexities"] == pytest.approx({"unigram": 0.2, "untrained": 0.02})
    assert told["required_ratio"] == {"unigram": 0.25, "untrained": 0.05}


@pytest.mark.parametrize(
    ("base", "failing"),
    [(math.log(26), "unigram"), (math.log(1000), "unigram"), (800.0, "unigram"), (math.nan, "unigram")],
)
def test_an_untrained_base_model_fails_with_what_was_measured(base, failing):
    losses = {"base": base, "unigram": math.log(100), "untrained": math.log(1000)}
    with pytest.raises(CheckFailed, match=rf"multiple of the {failing} model's.*required at most 0\.25") as caught:
        language.require_trained(losses, {"unigram": 0.25, "untrained": 0.05})
    assert "Train longer" in str(caught.value)


def test_each_reference_is_compared():
    losses = {"base": math.log(20), "unigram": math.log(100), "untrained": math.log(200)}
    with pytest.raises(CheckFailed, match=r"untrained model's\): measured 0\.1, required at most 0\.05"):
        language.require_trained(losses, {"unigram": 0.25, "untrained": 0.05})


def test_two_perplexities_beyond_double_precision_do_not_pass_as_equal():
    with pytest.raises(CheckFailed, match="untrained"):
        language.require_trained({"base": 800.0, "untrained": 900.0}, {"untrained": 0.05})


def test_perplexity_is_the_exponential_and_never_overflows():
    assert language.perplexity(0.0) == 1.0
    assert language.perplexity(math.log(20)) == pytest.approx(20)
    assert language.perplexity(1e6) == language.perplexity(700.0) == pytest.approx(math.exp(700))
