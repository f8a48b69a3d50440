"""`make assets` takes one file out of a wheel by its digest: no other content, no code, no half file."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from flows.command import settings
from storage import durable
from storage.errors import BadInput
from tasks.language import assets
from tasks.language.assets import ASSETS, Asset, extracts_as_json_lines, fetch
from tests.conftest import ROBUSTNESS

MEMBER = json.dumps({"A": {"extract": "One.", "title": "A"}, "B": {"extract": "Zwei ü.\nDrei."}}).encode()
TARGET = '{"text": "One."}\n{"text": "Zwei ü.\\nDrei."}\n'.encode()


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
        member="tiny_texts/data/summaries.json",
        member_sha256=sha256(MEMBER),
        target="texts.jsonl",
        target_sha256=sha256(TARGET),
        licence="none",
        make=extracts_as_json_lines,
    )


def test_the_member_of_the_wheel_is_fetched_and_nothing_else(asset, registry, tmp_path):
    target = fetch(asset, tmp_path / "assets")
    assert target == tmp_path / "assets" / "texts.jsonl" and target.read_bytes() == TARGET
    assert [file.name for file in (tmp_path / "assets").iterdir()] == ["texts.jsonl"]
    assert not (registry / "ran").exists()


def test_a_member_can_be_taken_as_it_is(asset, tmp_path):
    plain = replace(asset, make=bytes, target="summaries.json", target_sha256=sha256(MEMBER))
    assert fetch(plain, tmp_path / "assets").read_bytes() == MEMBER


def test_what_is_there_and_right_is_not_fetched_again(asset, registry, tmp_path):
    target = fetch(asset, tmp_path / "assets")
    before = target.stat()
    (registry / asset.wheel).unlink()
    fetch(asset, tmp_path / "assets")
    assert target.stat() == before


@pytest.mark.parametrize("there", [b"", TARGET[:-1], TARGET.replace(b"One", b"Two")])
def test_what_is_there_and_wrong_is_fetched_again(asset, tmp_path, there, caplog):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "texts.jsonl").write_bytes(there)
    assert fetch(asset, tmp_path / "assets").read_bytes() == TARGET
    assert "another digest" in caplog.text


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("wheel_sha256", r"tiny_texts-1\.0-py3-none-any\.whl has the sha256"),
        ("member_sha256", r"summaries\.json in tiny_texts.*has the sha256"),
        ("target_sha256", r"texts\.jsonl made of tiny-texts==1\.0 has the sha256"),
    ],
)
def test_a_wrong_checksum_at_any_step_is_bad_input_and_leaves_what_was_there(asset, tmp_path, field, named):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "texts.jsonl").write_bytes(b"as it was")
    with pytest.raises(BadInput, match=rf"{named} [0-9a-f]{{64}}, and 0{{64}} is required"):
        fetch(replace(asset, **{field: "0" * 64}), tmp_path / "assets")
    assert {file.name: file.read_bytes() for file in (tmp_path / "assets").iterdir()} == {"texts.jsonl": b"as it was"}


def test_another_wheel_under_the_same_name_is_not_opened(asset, registry, tmp_path):
    with zipfile.ZipFile(registry / asset.wheel, "a") as wheel:
        wheel.writestr("tiny_texts/more.py", "")
    with pytest.raises(BadInput, match=r"tiny_texts-1\.0-py3-none-any\.whl has the sha256"):
        fetch(asset, tmp_path / "assets")


def test_a_member_that_is_not_in_the_wheel_is_named(asset, tmp_path):
    with pytest.raises(BadInput, match=r"tiny_texts/other\.json cannot be read from tiny_texts"):
        fetch(replace(asset, member="tiny_texts/other.json"), tmp_path / "assets")


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
    monkeypatch.setattr(assets, "ASSETS", [replace(asset, target="other", member_sha256="0" * 64)])
    assert assets.main() == 2
    assert "has the sha256" in caplog.text


def test_the_table_is_pinned_and_is_what_the_profile_reads():
    for asset in ASSETS:
        assert "==" in asset.package and asset.wheel.startswith(asset.package.replace("-", "_").replace("==", "-"))
        assert all(len(digest) == 64 for digest in (asset.wheel_sha256, asset.member_sha256, asset.target_sha256))
        assert asset.make is not bytes or asset.member_sha256 == asset.target_sha256
    study = settings.read_study(ROBUSTNESS, "smollm2-135m", [], None)
    read = {study.model.path, *study.text.paths}
    assert read == {str((assets.FOLDER / asset.target).absolute()) for asset in ASSETS}


@pytest.mark.parametrize("asset", ASSETS, ids=lambda asset: asset.target)
def test_what_make_assets_fetched_is_still_what_the_table_says(asset):
    file = Path(__file__).parents[3] / assets.FOLDER / asset.target
    if not file.exists():
        pytest.skip(f"{asset.target} is not there: `make assets` fetches it")
    assert durable.sha256_file(file) == asset.target_sha256


def test_the_fetched_model_is_a_trained_one():
    """SmolLM2 from its real file: English is likely to it, the same words in disorder are not."""
    import torch

    from tasks.language import model as language
    from tasks.language.configuration import PretrainedDirectory
    from tasks.language.tokenizer import encode, load_tokenizer

    file = Path(__file__).parents[3] / assets.FOLDER / ASSETS[0].target
    if not file.exists():
        pytest.skip(f"{file.name} is not there: `make assets` fetches it")
    tokenizer = load_tokenizer(PretrainedDirectory(path=str(file)), [], file.parent)
    model = language.load(file)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    text = "A hat is a head covering which is worn for various reasons, including protection against the weather."
    (ids,) = encode(tokenizer, [text])
    with torch.no_grad():
        loss, shuffled = (
            language.block_losses(model, torch.tensor([order])).item()
            for order in (ids, [ids[7 * i % len(ids)] for i in range(len(ids))])
        )
    assert loss < 4.5 and shuffled > loss + 2  # 10.8 is a guess among all tokens
