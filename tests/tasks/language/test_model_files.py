"""A pretrained model counts by the content of its files, and installed packages by their versions."""

import pytest

from storage import durable
from storage.errors import BadInput
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
