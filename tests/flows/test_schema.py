"""`ratchet schema`: what an editor checks a profile by takes every profile there is, and no wrong one."""

import json

import pytest
from jsonschema import Draft202012Validator

from deployments.dag.page import load_page
from deployments.dag.sources import page_names
from flows import command
from flows.command.settings import profile_names, read_study
from storage import reading
from storage.errors import BadInput


@pytest.mark.parametrize("study", page_names())
def test_every_profile_is_valid_by_the_schema_of_its_study(study, capsys):
    assert command.ratchet(["schema", study]) == 0
    schema, page = json.loads(capsys.readouterr().out), load_page(study)
    Draft202012Validator.check_schema(schema)
    assert schema["properties"].keys() == page.model.model_fields.keys() and profile_names(page)
    for profile in profile_names(page):
        file = page.profiles / f"{profile}.yaml"
        values = reading.yaml_value(file.read_text(), str(file))
        Draft202012Validator(schema).validate(values)
        unnamed = {key: value for key, value in values.items() if key != "name"}
        Draft202012Validator(schema).validate(unnamed)  # the file does
        assert not Draft202012Validator(schema).is_valid(values | {"no_such_key": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("budget", {"epoch": 1}),
        ("budget", {"epochs": -1}),
        ("budget", 3),
        ("seed", "abc"),
        ("arms", "baseline"),
        ("model", {"source": "hub", "model": "a", "revision": "main"}),
        ("execution", {"device": "gpu"}),
        ("name", "a/b"),
    ],
)
def test_what_a_study_refuses_the_schema_refuses_too(key, value, capsys):
    command.ratchet(["schema", "robustness"])
    schema, page = Draft202012Validator(json.loads(capsys.readouterr().out)), load_page("robustness")
    file = page.profiles / "smoke.yaml"
    assert not schema.is_valid(reading.yaml_value(file.read_text(), str(file)) | {key: value})
    with pytest.raises(BadInput):
        read_study(page, "smoke", [f"{key}={json.dumps(value)}"], None)


def test_a_group_with_a_default_may_have_part_of_its_keys(capsys):
    command.ratchet(["schema", "calorimeter"])
    schema, page = Draft202012Validator(json.loads(capsys.readouterr().out)), load_page("calorimeter")
    assert "required" in page.model.model_json_schema()["$defs"]["Filling"]
    assert read_study(page, None, ["mae={loss_beta: 0.2}"], None) and schema.is_valid({"mae": {"loss_beta": 0.2}})
