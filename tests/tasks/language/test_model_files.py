"""A pretrained model counts by the content of its files, and installed packages by their versions."""

import shutil

import pytest

from storage import durable
from storage.errors import BadInput
from tasks.language import foreign
from tasks.language.configuration import PackageDocs
from tasks.language.model_files import model_manifest


@pytest.fixture(autouse=True)
def cache_file(tmp_path, monkeypatch):
    """A digest cache of our own instead of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "ratchet" / "digests.json"


def model_folder(folder, weights="model.safetensors"):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / weights).write_bytes(b"weights")
    return folder


def versions(*packages):
    return PackageDocs(packages=[*packages]).external_inputs()["packages"]


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_model_folder_counts_by_all_of_its_files(tmp_path, weights):
    folder = model_folder(tmp_path / "model", weights)
    assert set(model_manifest(str(folder))) == {"config.json", "tokenizer.json", weights}


@pytest.mark.parametrize(
    ("file", "lacks"),
    [
        ("model.safetensors", r"weights \(no \*\.safetensors or pytorch_model\*\.bin\)"),
        ("config.json", r"config\.json"),
        ("tokenizer.json", r"tokenizer \(none of tokenizer\.json"),
    ],
)
def test_a_model_folder_that_is_not_whole_says_what_is_missing(tmp_path, file, lacks):
    folder = model_folder(tmp_path / "model")
    (folder / file).unlink()
    with pytest.raises(BadInput, match=f"has no {lacks}"):
        model_manifest(str(folder))


def test_a_model_path_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    for given in (tmp_path / "nowhere", tmp_path / "model.safetensors"):
        with pytest.raises(BadInput, match="is not a folder"):
            model_manifest(str(given))


def test_a_gguf_file_counts_by_its_own_content_alone(tmp_path):
    file = tmp_path / "here" / "model.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF and weights")
    manifest = model_manifest(str(file))
    assert manifest == {"model.gguf": durable.sha256_file(file)}
    (file.parent / "tokenizer_config.json").write_text("{}")
    assert model_manifest(str(file)) == manifest
    assert model_manifest(str(shutil.copytree(file.parent, tmp_path / "there") / "model.gguf")) == manifest
    file.write_bytes(b"GGUF other weights")
    assert model_manifest(str(file)) != manifest


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\3\4", b"GGML rest", b"<html>GGUF"])
def test_a_file_that_is_called_gguf_and_is_none_is_refused_by_name(tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(BadInput, match=r"model\.gguf is not a GGUF file"):
        model_manifest(str(tmp_path / "model.gguf"))


def test_a_gguf_file_that_is_not_there_says_how_to_get_one(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    for name in ("absent.gguf", "folder.gguf"):
        with pytest.raises(BadInput, match=rf"{name} is not a file.*make assets"):
            model_manifest(str(tmp_path / name))


def test_the_folder_of_a_gguf_file_alone_holds_it_and_is_gone_afterwards(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF and weights")
    (tmp_path / "config.json").write_text("{}")
    with foreign.place_of(tmp_path / "model.gguf") as place:
        folder = place.given
        assert [file.name for file in folder.iterdir()] == ["model.gguf"]
        assert (folder / "model.gguf").read_bytes() == b"GGUF and weights"
    assert not folder.exists() and (tmp_path / "model.gguf").exists()


def test_packages_are_listed_by_version_in_one_order():
    listed = versions("pytest", "NumPy")
    assert listed == sorted(listed) == versions("numpy", "pytest")
    assert f"pytest=={pytest.__version__}" in listed
    assert any(line.startswith("python==3.") for line in listed)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(BadInput, match="'ratchet-no-such-package', which is not installed here"):
        versions("pytest", "ratchet-no-such-package")


@pytest.mark.parametrize("named", ["../other/model.safetensors", "/etc/passwd", 3])
def test_a_model_s_index_named_weights_of_another_folder(tmp_path, named):
    folder = model_folder(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    durable.write_json(index, {"weight_map": {"a": "model.safetensors", "b": named}})
    with pytest.raises(BadInput, match=f"{index} does not name weights of this folder"):
        model_manifest(str(folder))
