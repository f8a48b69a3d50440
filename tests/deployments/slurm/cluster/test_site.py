"""The site file: one file a cluster, and an error that names what is wrong where."""

import re
from pathlib import Path

import pytest
import yaml

from deployments.slurm.cluster.site import SITES, VARIABLE, Overrides, Resources, Site, overrides, read_site
from storage.errors import BadInput


def written(folder: Path, text: str) -> str:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return str(file)


def problem(folder: Path, text: str) -> str:
    """The message of a site file that is refused, which names the file."""
    name = written(folder, text)
    with pytest.raises(BadInput) as error:
        read_site(name)
    assert name in str(error.value)
    return str(error.value)


def test_the_example_is_valid_and_is_found_by_its_name(monkeypatch):
    monkeypatch.setenv("USER", "anna")
    site = read_site("example")
    assert site.root == "/scratch/anna/ratchet"
    assert (site.resources, site.stages) == ({}, {}), "what needs a person's own value is commented out"
    monkeypatch.setenv(VARIABLE, "example")
    assert read_site() == site == read_site(str(SITES / "example.yaml"))


def test_only_what_is_set_overrides(tmp_path):
    site = read_site(written(tmp_path, "root: /runs\nresources: {cpus: 2, exclude: []}\nstages: {train: {gpus: 1}}\n"))
    assert site.resources == {"cpus": 2, "exclude": []} and site.stages == {"train": {"gpus": 1}}


def test_a_site_that_is_missing_is_named_with_those_that_are_there(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(BadInput, match=r"no site file .*nowhere\.yaml: copy .*example\.yaml.*RATCHET_SITE.*example"):
        read_site("nowhere")
    with pytest.raises(BadInput, match=r"cluster\.yaml"):
        read_site()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root: runs", ["root", "absolute path"]),
        ("root: /runs\ncache: here", ["cache", "absolute path"]),
        ("root: /runs/$NOT_SET_HERE", ["root", "$NOT_SET_HERE"]),
        ("{}", ["root", "is missing"]),
        ("", ["a group of keys"]),
        ("- a", ["a group of keys"]),
        ("root: /runs\nrooot: /runs", ["rooot"]),
        ("root: /runs\njob_name: '{study}-{sede}'", ["job_name", "sede", "{seed}"]),
        ("root: /runs\njob_name: '{study'", ["job_name"]),
        ("root: /runs\njob_name: '{study}-{seed:03d}'", ["job_name", "{seed}"]),
        ("root: /runs\njob_name: '{study.name}'", ["job_name", "{study}"]),
        ("root: /runs\njob_name: \"two\\nlines\"", ["job_name", "one line"]),
        ("root: /runs\nresources: {memory: 3}", ["resources", "memory: unknown", "did you mean 'memory_gb'"]),
        ("root: /runs\nresources: {cpus: many}", ["resources", "cpus"]),
        ("root: /runs\nresources: {time_limit_minutes: 0}", ["time_limit_minutes", "greater than or equal to 1"]),
        ("root: /runs\nresources: {partition: 'a b'}", ["partition", "one word"]),
        ("root: /runs\nresources: {exclude: ['n1 n2']}", ["exclude.0", "one word"]),
        ("root: /runs\nresources: {setup_lines: [\"a\\nb\"]}", ["setup_lines.0", "one line"]),
        ("root: /runs\nresources: {extra_sbatch_lines: ['--partition=x']}", ["extra_sbatch_lines.0", "set by Ratchet"]),
        ("root: /runs\nstages: {train: {gpus: -1}}", ["stages.train", "gpus"]),
        ("root: /runs\nstages: {train: 3}", ["stages.train"]),
        ("root: [", ["cannot be read as YAML"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_where(tmp_path, text, words):
    message = problem(tmp_path, text)
    for word in words:
        assert word in message, message


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("bytes.yaml", "folder.yaml"):
        with pytest.raises(BadInput, match=rf"{name} cannot be read as YAML"):
            read_site(str(tmp_path / name))


def test_home_and_environment_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("PLACE", "/scratch")
    site = read_site(written(tmp_path, "root: $PLACE/runs\nresults: ~/results\n"))
    assert (site.root, site.results) == ("/scratch/runs", "/home/anna/results")


def test_every_resource_can_be_overridden_within_its_own_limits():
    assert set(Overrides.model_fields) == set(Resources.model_fields)
    assert overrides({"here": {}}, "") == overrides({"here": {"cpus": None}}, "") == {"here": {}}
    wrong = {"cpus": 0, "memory_gb": -1, "gpus": -1, "lead_seconds": -1, "gpu_model": "a b"}
    for field, value in wrong.items():
        with pytest.raises(BadInput, match=rf"here: {field}"):
            overrides({"here": {field: value}}, "")


@pytest.mark.parametrize("none", ["0", "null"])
def test_a_site_that_does_not_count_memory_asks_for_none(tmp_path, none):
    """An empty key leaves what prefect.yaml asks for: 77 GB for a training."""
    assert read_site(written(tmp_path, f"root: /runs\nresources: {{memory_gb: {none}}}\n")).resources == {
        "memory_gb": 0
    }


def test_all_resources_that_are_wrong_are_named_at_once(tmp_path):
    text = problem(tmp_path, "root: /runs\nresources: {cpu: 1}\nstages: {train: {gpus: -1}, base: {memory: 1}}")
    assert [word in text for word in ("resources: cpu", "stages.train: gpus", "stages.base: memory")] == [True] * 3


def test_the_example_says_every_field_that_a_cluster_must_set():
    values = yaml.safe_load((SITES / "example.yaml").read_text())
    required = {name for name, field in Site.model_fields.items() if field.is_required()}
    assert required <= set(values)
    assert all(field.description for name, field in Site.model_fields.items())


def test_the_example_names_every_key():
    """Nobody should have to search for them in the source."""
    text = (SITES / "example.yaml").read_text()
    keys = {*Site.model_fields, *Resources.model_fields} - {"strict_lead"}  # of tests only
    assert not [key for key in keys if not re.search(rf"\b{key}:", text)]


def test_an_empty_key_is_one_that_is_left_out(tmp_path):
    """As in a copy of the example where somebody took only the # away."""
    text = "root: /shared\nresources:\n  account:\n  cpus: 2\nstages:\n  train: {qos: }\n"
    site = read_site(written(tmp_path, text))
    assert site.resources == {"cpus": 2} and site.stages == {"train": {}}
