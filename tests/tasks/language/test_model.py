"""Models: their losses, how they are kept, and when a base model counts as trained."""

import math
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from storage.errors import BadInput, CheckFailed
from tasks.language import model as language
from tasks.language.blocks import Blocks, pack
from tasks.language.configuration import BaseChecks, FromScratch, PretrainedHub
from tasks.language.losses import perplexity, require_trained
from tasks.language.model import MonotoneParts, monotone_parts
from tasks.language.tokenizer import load_tokenizer
from tasks.robustness.study import Study
from tasks.training.budget import Budget
from tests.tasks.language.hub_errors import FINAL, LOST, raising
from tests.tasks.monotonic.architectures import network
from tests.tasks.tiny import (
    ToyConfig,
    bytes_are_equal,
    files_of,
    save_model,
    tiny_model,
    toy_attempt,
)


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


@pytest.mark.parametrize("activation", ["relu", "monotone-parts"])
def test_a_model_with_another_activation_loads_with_it(tmp_path, activation):
    model = tiny_model(activation=activation)
    loaded = language.load(save_model(tmp_path / "model", model))
    tokens = torch.tensor([[3, 60, 0, 7, 9, 2]])
    with torch.no_grad():
        assert bytes_are_equal(loaded(tokens).logits, model(tokens).logits)
        assert not torch.allclose(loaded(tokens).logits, tiny_model()(tokens).logits, atol=1e-4)
    assert loaded.config.hidden_act == activation


def test_the_activation_changes_neither_weights_nor_the_fingerprints_of_models_without_one():
    config = FromScratch(pretraining=Budget())
    assert "activation" not in config.scientific()
    relu = config.model_copy(update={"activation": "relu"})
    assert relu.scientific() == config.scientific() | {"activation": "relu"}
    assert tiny_model().config.hidden_act == "gelu"
    for name, tensor in tiny_model().state_dict().items():
        assert bytes_are_equal(tiny_model(activation="monotone-parts").state_dict()[name], tensor)


def test_monotone_parts_are_convex_concave_and_saturated_units_by_the_place_of_the_unit():
    z = torch.tensor([-2.0, -0.5, 0.5, 2.0])
    values = MonotoneParts()(z[:, None].repeat(1, 16)).T.tolist()
    assert values[:7] == [[0.0, 0.0, 0.5, 2.0]] * 7
    assert values[7:14] == [[-2.0, -0.5, 0.0, 0.0]] * 7
    assert values[14:] == [[-1.0, -0.5, 0.5, 1.0]] * 2
    assert [monotone_parts(units) for units in (8, 32, 512)] == [(4, 4, 0), (14, 14, 4), (224, 224, 64)]


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


@pytest.mark.parametrize("architecture", ["gpt_neox", "gpt2", "llama", "qwen3"])
def test_no_pass_of_a_training_asks_for_a_value_so_that_no_host_waits_for_its_gpu(architecture):
    """Seen: transformers looked for packed texts in every pass."""
    model = network(architecture).train().to("meta")  # which has none
    language.block_losses(model, torch.zeros(2, 17, dtype=torch.long, device="meta")).sum().backward()


# -------------------------------------------------------------------------------------------------- hub


REVISION = "0123456789abcdef" * 2 + "01234567"


def hub_copy(cache: Path) -> None:
    """What a download of tiny/neox at REVISION leaves below `cache`."""
    model = save_model(cache / "made", tiny_model(seed=3))
    repository = cache / "hub" / "models--tiny--neox"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    model.rename(repository / "snapshots" / REVISION)


def test_a_hub_model_is_loaded_from_its_local_copy_at_the_revision_and_at_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub_copy(tmp_path)
    loaded = language.pretrained(PretrainedHub(model="tiny/neox", revision=REVISION), tmp_path)
    expected = tiny_model(seed=3).state_dict()
    assert all(bytes_are_equal(loaded.state_dict()[name], tensor) for name, tensor in expected.items())
    with pytest.raises(BadInput, match="f" * 40):
        language.pretrained(PretrainedHub(model="tiny/neox", revision="f" * 40), tmp_path)


def _field_names(schema) -> set[str]:
    if isinstance(schema, dict):
        inner = {name for value in schema.values() for name in _field_names(value)}
        return inner | set(schema.get("properties", {}))
    return {name for value in schema for name in _field_names(value)} if isinstance(schema, list) else set()


def test_no_field_of_a_study_holds_a_secret():
    """The hub's token comes from HF_TOKEN alone: a configuration is stored, shown and shared."""
    names = _field_names(Study.model_json_schema())
    assert {"learning_rate", "micro_batch_examples", "revision"} <= names, "every level was visited"
    words = {word for name in names for word in name.removesuffix("_per_token").split("_")}  # a unit, and no secret
    assert not words & {"token", "secret", "password", "credential", "credentials", "key", "auth"}


def test_the_hub_s_token_reaches_neither_run_directory_nor_error(tmp_path, monkeypatch, caplog):
    secret = "hf_this-is-the-token"
    monkeypatch.setenv("HF_TOKEN", secret)
    assert toy_attempt(tmp_path / "runs", ToyConfig()).end_state == "finished"
    written = files_of(tmp_path / "runs")
    assert any(name.endswith("stage.json") for name in written) and any("attempts/0001" in name for name in written)
    assert not [name for name, data in written.items() if secret.encode() in data]
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", raising("403"))
    with pytest.raises(
        BadInput, match="for a gated model accept its terms there and set HF_TOKEN in the environment"
    ) as caught:
        language.pretrained(PretrainedHub(model="meta-llama/Llama-3.2-1B", revision="0" * 40), tmp_path)
    assert secret not in str(caught.value) + caplog.text


@pytest.mark.parametrize(("name", "kind"), [(n, ConnectionError) for n in LOST] + [(n, BadInput) for n in FINAL])
def test_a_lost_connection_to_the_hub_differs_from_what_no_retry_mends(tmp_path, monkeypatch, name, kind):
    config = PretrainedHub(model="nobody/nothing", revision="0" * 40)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", raising(name))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", raising(name))
    for load in (lambda: language.pretrained(config, tmp_path), lambda: load_tokenizer(config, [], tmp_path)):
        with pytest.raises(kind) as caught:
            load()
        for part in ("nobody/nothing", "0" * 40, "HF_TOKEN", "model.source=directory"):
            assert part in str(caught.value)


# ----------------------------------------------------------------------------------------- from scratch


def test_the_init_seed_decides_the_initial_weights():
    def weights(seed: int):
        return torch.cat([p.detach().flatten() for p in tiny_model(seed=seed).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_a_model_from_scratch_has_the_shape_it_was_asked_for():
    config = FromScratch(
        vocabulary_size=300, hidden_size=24, layers=3, attention_heads=4, feed_forward_size=40, pretraining=Budget()
    )
    model = language.untrained(config, 77, 16)
    assert model.get_input_embeddings().weight.shape == (77, 24)
    assert len(model.gpt_neox.layers) == 3
    assert model.gpt_neox.layers[0].mlp.dense_h_to_4h.weight.shape == (40, 24)
    assert model.config.max_position_embeddings == 16


# -------------------------------------------------------------------------------------- require_trained


CHECKS = BaseChecks(max_ratio_to_unigram=0.25, max_ratio_to_untrained=0.05)


def test_a_trained_base_model_passes_and_its_ratios_are_returned():
    losses = {"base": math.log(20), "unigram": math.log(100), "untrained": math.log(1000)}
    check = require_trained(losses, CHECKS)
    assert check.validation_perplexity == pytest.approx({"base": 20, "unigram": 100, "untrained": 1000})
    assert check.ratio_of_perplexities == pytest.approx({"unigram": 0.2, "untrained": 0.02})
    assert check.required_ratio == {"unigram": 0.25, "untrained": 0.05}


UNIGRAM = r"multiple of the unigram model's.*required at most 0\.25.*Train longer"


@pytest.mark.parametrize(
    ("base", "untrained", "said"),
    [
        (math.log(26), math.log(1000), UNIGRAM),
        (math.log(1000), math.log(1000), UNIGRAM),
        (800.0, math.log(1000), UNIGRAM),
        (math.nan, math.log(1000), UNIGRAM),
        (math.log(20), math.log(200), r"untrained model's\): measured 0\.1\d*, required at most 0\.05"),
    ],
)
def test_an_untrained_base_model_fails_by_either_reference_with_what_was_measured(base, untrained, said):
    losses = {"base": base, "unigram": math.log(100), "untrained": untrained}
    with pytest.raises(CheckFailed, match=f"(?s){said}"):
        require_trained(losses, CHECKS)


def test_two_perplexities_beyond_double_precision_do_not_pass_as_equal():
    with pytest.raises(CheckFailed, match="untrained"):
        require_trained({"base": 800.0, "untrained": 900.0}, CHECKS)


def test_perplexity_is_the_exponential_and_never_overflows():
    assert perplexity(0.0) == 1.0
    assert perplexity(math.log(20)) == pytest.approx(20)
    assert perplexity(1e6) == perplexity(700.0) == pytest.approx(math.exp(700))
