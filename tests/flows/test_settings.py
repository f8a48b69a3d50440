"""Configuration: what a person writes, what is refused and how, and what reaches a fingerprint."""

from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from prefect.utilities.callables import parameter_schema
from pydantic import AfterValidator, BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from deployments.dag.page import load_page
from deployments.dag.sources import page_names
from deployments.dag.walk import Walk
from deployments.flow import Form
from flows import robustness
from flows.command import settings
from storage import external
from storage.errors import BadInput
from tasks.attacks import configuration as of_attacks
from tasks.attacks import stages as stages_of_attacks
from tasks.findings import configuration as of_findings
from tasks.language import configuration as of_language
from tasks.language import model_files
from tasks.language import stages as stages_of_language
from tasks.language.configuration import LocalFiles, PretrainedDirectory
from tasks.language.stages import BaseConfig, SetupConfig
from tasks.monotonic import stages as stages_of_monotonic
from tasks.monotonic.arm import ArmName
from tasks.monotonic.stages import TrainConfig
from tasks.robustness import stages
from tasks.robustness import study as of_study
from tasks.robustness.stages import AggregateConfig
from tasks.robustness.study import Study
from tasks.stage.configuration import Configuration, scientific
from tasks.stage.execution import Execution
from tests.conftest import ROBUSTNESS

VOCABULARY = (
    of_study, stages, of_attacks, of_language, of_findings,
    stages_of_attacks, stages_of_language, stages_of_monotonic,
)  # fmt: skip
PROFILES = settings.profile_names(ROBUSTNESS)

TRAINED = ("baseline", "monotonic")
BASE_AND_BASELINE = {f"{attack} ({model})" for attack in ("uat", "hotflip") for model in ("base", "baseline")}


def _configurations() -> dict[str, type[Configuration]]:
    return {
        name: kind
        for module in VOCABULARY
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Configuration) and kind is not Configuration
    }


def _smoke(**changes: Any) -> Study:
    return settings.read_study(ROBUSTNESS, "smoke", [f"{key}={value}" for key, value in changes.items()], None)


def _fingerprints(study: Study) -> dict[str, str]:
    walk = Walk("/nonexistent", study.name)
    robustness.page(study, walk)
    return {handle.label: handle.run.fingerprint for handle in walk.handles}


def test_every_field_has_a_description_for_the_form():
    for kind in _configurations().values():
        for field, info in kind.model_fields.items():
            assert info.description and len(info.description) > 10, f"{kind.__name__}.{field}"


def _leaves(annotation: Any) -> set[Any]:
    return {leaf for part in get_args(annotation) for leaf in _leaves(part)} or {annotation}


def test_only_types_that_yaml_the_form_and_python_share():
    for kind in _configurations().values():
        for field, info in kind.model_fields.items():
            for leaf in _leaves(info.annotation):
                plain = leaf in (int, float, str, bool, type(None), list, Any) or isinstance(
                    leaf, int | float | str | AfterValidator | FieldInfo
                )
                nested = isinstance(leaf, type) and issubclass(leaf, BaseModel)
                assert plain or nested, f"{kind.__name__}.{field}: {leaf}"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_valid_as_yaml_as_the_ui_form_and_as_python(profile):
    study = settings.read_study(ROBUSTNESS, profile, [], None)
    form = study.model_dump(mode="json")
    assert robustness.robustness.validate_parameters({"study": form})["study"] == study
    assert Study(**form) == study


def test_a_key_that_is_given_twice_is_refused_at_the_line_of_the_second(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nseed: 1\n\nseed: 2\n")
    with pytest.raises(BadInput, match=rf"'seed' is given twice\s+in \"{file}\", line 4"):
        settings.read_study(ROBUSTNESS, str(file), [], None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "text.source=package-doc",
            r"text\.source: 'package-doc' is none of its values; did you mean 'package-docs'\? ",
        ),
        ("model={layers: 2}", r"model\.source is missing: from-scratch, directory, hub$"),
    ],
)
def test_a_group_that_says_wrongly_or_not_what_it_is_names_what_would_be_valid(change, message):
    with pytest.raises(BadInput, match=message) as caught:
        settings.read_study(ROBUSTNESS, "smoke", [change], None)
    assert "tag" not in str(caught.value)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_key_of_every_profile_is_read_by_a_stage(profile, monkeypatch):
    """What changes no stage's configuration would be a key that does nothing."""
    for where, manifest in ((external, "file_manifest"), (model_files, "model_manifest")):  # assets/ need not be there
        monkeypatch.setattr(where, manifest, lambda _: {"file": "0" * 64})
    study = settings.read_study(ROBUSTNESS, profile, [], None)
    read: list[Any] = []

    class Reader(Walk):
        def __call__(self, stage: Any, config: Any, **inputs: Any) -> Any:
            read.extend(getattr(config, name) for name in type(config).model_fields)
            return super().__call__(stage, config, **inputs)

    robustness.page(study, Reader("/nonexistent", study.name))
    budgets = [study.budget.model_copy(update={"learning_rate": rate}) for rate in study.learning_rates]
    assert all(budget in read for budget in budgets), "a training for each rate"
    tried = {"budget", "learning_rates"} if budgets else set()
    for name in set(Study.model_fields) - {"sweep_seeds", "seed", "name"} - tried:
        assert getattr(study, name) in read, name


def test_the_pythia_profile_has_the_numbers_of_the_seed():
    study = settings.read_study(ROBUSTNESS, "pythia-1.4b", [], None)
    assert study.model.model == "EleutherAI/pythia-1.4b" and study.text.dataset == "monology/pile-uncopyrighted"
    assert (study.splits.train_documents, study.sequence_length, study.seed) == (100_000, 2048, 42)
    assert (study.execution.micro_batch_examples, study.budget.effective_batch_examples) == (8, 8 * 4)
    budget = study.budget
    assert (budget.epochs, budget.learning_rate, budget.warmup_ratio) == (1.0, 1e-5, 0.10)
    assert (budget.weight_decay, budget.max_gradient_norm) == (0.01, 1.0)
    assert study.sweep_seeds == [42, 1337, 2024, 8888, 12345]
    assert {fields["budget"].learning_rate for arm in study.arms for fields in study.training_fields(arm)} == {1e-5}
    assert (study.uat.trigger_tokens, study.uat.restarts, study.uat.iterations, study.uat.candidates) == (
        10,
        5,
        100,
        100,
    )
    assert (study.hotflip.flips, study.hotflip.documents) == (10, 200)
    assert study.hotflip.success_relative_increase == 0.15


@pytest.mark.parametrize("profile", ["pythia-70m", "pythia-2.8b", "pythia-6.9b", "llama-3.2-1b"])
def test_the_other_hub_profiles_ask_the_same_of_other_models(profile):
    """What differs is the model, what it forces (variant, windows), and how the work is done."""
    ours, seed = (settings.read_study(ROBUSTNESS, name, [], None).scientific() for name in (profile, "pythia-1.4b"))
    differing = {key for key in seed if ours[key] != seed[key]}
    assert (
        differing
        == {
            "pythia-70m": {"model"},
            "pythia-2.8b": {"model", "sequence_length"},
            "pythia-6.9b": {"model", "sequence_length"},
            "llama-3.2-1b": {"model", "constraint"},
        }[profile]
    )
    study = settings.read_study(ROBUSTNESS, profile, [], None)
    assert study.budget.effective_batch_examples % study.execution.micro_batch_examples == 0


def test_execution_never_reaches_a_fingerprint():
    changes = {
        "execution.cpu_threads": 1,
        "execution.micro_batch_examples": 4,
        "execution.attack_batch_examples": 3,
        "execution.keep_checkpoints": 5,
        "execution.max_steps_per_run": 3,
        "execution.checkpoint_every_seconds": 1.5,
        "name": "other",
    }
    assert _fingerprints(_smoke(**changes)) == _fingerprints(_smoke())


MADE_ONCE = {"setup", "base", "constrain (non-negative-positive-part)"}
UAT, HOTFLIP = ({f"{attack} ({model})" for model in ("base", *TRAINED)} for attack in ("uat", "hotflip"))
MODELS = MADE_ONCE | {f"train-{arm}" for arm in TRAINED}
EXAMINED = MODELS | {"evaluate", "order"}


@pytest.mark.parametrize(
    ("change", "value", "stays"),
    [
        ("seed", 7, MADE_ONCE),
        ("budget.learning_rate", 0.5, MADE_ONCE | {"uat (base)", "hotflip (base)"}),
        ("constraint.variant", "mlp_in", {"setup", "base", "uat (base)", "hotflip (base)"}),
        ("constraint.start", "absolute", {"setup", "base", "train-baseline", *BASE_AND_BASELINE}),
        ("arms", "[baseline, monotonic, own-signs]", MODELS | UAT | HOTFLIP),
        ("snapshots", "[0.5]", {"setup"}),
        ("evaluation.bootstrap_resamples", 300, EXAMINED | UAT | HOTFLIP | {"transfer", "audit"}),
        ("primary.margin_nats_per_token", 0.1, EXAMINED | UAT | HOTFLIP | {"transfer", "audit"}),
        ("audit.examples", 3, EXAMINED | UAT | HOTFLIP | {"transfer"}),
        ("evaluation_precision", "fp32", EXAMINED | UAT | HOTFLIP | {"transfer", "audit", "aggregate"}),
        ("evaluation_precision", "bf16", MODELS | {"order", "transfer"} | UAT | HOTFLIP),
        ("uat.iterations", 4, EXAMINED | HOTFLIP),
        ("hotflip.flips", 1, EXAMINED | UAT),
        ("model.layers", 3, {"setup"}),
        ("splits.test_documents", 21, set()),
    ],
)
def test_a_change_reaches_only_the_stages_that_read_it(change, value, stays):
    before, after = _fingerprints(_smoke()), _fingerprints(_smoke(**{change: value}))
    assert {name for name in before if before[name] == after.get(name)} == stays


@pytest.mark.parametrize(("change", "value"), [("seed", 7), ("model.init_seed", 7)])
def test_other_seeds_draw_other_random_signs(change, value):
    arms = ["baseline", "monotonic", "random-signs"]
    before, after = _smoke(arms=arms).start_fields, _smoke(arms=arms, **{change: value}).start_fields
    assert list(before) == ["non-negative-positive-part", "random-positive-part"]
    assert before["non-negative-positive-part"] == after["non-negative-positive-part"]
    assert before["random-positive-part"]["seeds"] != after["random-positive-part"]["seeds"]


def test_arms_that_start_alike_share_the_stage_that_makes_their_start():
    """Of eight arms with constrained weights seven starts are made."""
    arms = [*get_args(ArmName)]
    study = _smoke(arms=arms)
    assert list(study.start_fields) == [
        "non-negative-positive-part",
        "own-positive-part",
        "random-positive-part",
        "per-unit-positive-part",
        "off-positive-part",
        "non-negative-absolute",
        "non-negative-shifted",
    ]
    assert study.start_of("unconstrained-start") == study.start_of("monotonic")
    trained = {handle for handle in _fingerprints(study) if handle.startswith("train-")}
    assert trained == {"train-baseline", "train-monotonic", *(f"train-placebo ({arm})" for arm in arms[2:])}


def test_learning_rates_give_every_arm_the_same_trials_and_a_choice():
    study = _smoke(learning_rates="[1e-3, 3e-3]", arms="[baseline, monotonic, own-signs]")
    labels = _fingerprints(study)
    for arm, trained in (
        ("baseline", "train-baseline (rate {})"),
        ("monotonic", "train-monotonic (rate {})"),
        ("own-signs", "train-placebo (own-signs, rate {})"),
    ):
        assert {trained.format(rate) for rate in ("0.001", "0.003")} | {f"choose ({arm})"} <= labels.keys()
    one = _smoke(learning_rates="[5e-4]")
    assert [fields["budget"].learning_rate for fields in one.training_fields("monotonic")] == [5e-4]


def test_a_field_added_later_leaves_old_fingerprints_alone_while_it_has_its_default():
    class Old(Configuration):
        epochs: float = scientific(1.0, description="an old field")

    class New(Old):
        dropout: float = scientific(0.0, description="a field added later", added_later=True)

    assert New().scientific() == Old().scientific()
    assert New(dropout=0.1).scientific() != Old().scientific()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("budget.learning_rat", 1, r"budget\.learning_rat: unknown key.*did you mean 'learning_rate'.*epochs"),
        ("model.hiden_size", 8, r"model\.hiden_size.*did you mean 'hidden_size'"),
        ("atacks", 1, "atacks: unknown key.*valid keys here: arms, audit, base_checks, budget"),
        ("micro_batch", 4, r"micro_batch: unknown key.*did you mean 'execution\.micro_batch_examples'\? "),
        ("learning_rate", 1e-3, r"learning_rate: unknown key.*did you mean 'budget\.learning_rate' or 'model\."),
        ("epochs", 1, r"did you mean 'budget\.epochs' or 'model\.pretraining\.epochs'\? "),
        ("text.paths", "[a.txt]", r"text\.paths: a key of another text\.source; valid keys here: max_char"),
        ("evaluation.lambada", 500, r"evaluation\.lambada: unknown key.*valid keys here: bootstrap_resamples"),
    ],
)
def test_an_unknown_key_is_named_with_what_would_be_valid_or_the_group_that_has_it(key, value, said):
    with pytest.raises(BadInput, match=said):
        _smoke(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("splits.max_shared_shingles", 3, r"max_shared_shingles: .* or equal to 1 \(it is 3; limits: >= 0, <= 1\)"),
        ("text.packages", "numpy", r"text\.packages: .*\(it is 'numpy'\): write a list, such as \[numpy\]"),
    ],
)
def test_a_value_beyond_a_limit_or_no_list_is_refused_with_what_would_be_one(key, value, said):
    with pytest.raises(BadInput, match=said):
        _smoke(**{key: value})


def test_a_variant_that_the_model_does_not_have_is_refused_before_anything_runs():
    told = "constraint.variant {} does not exist in a model of architecture {}, which has {}"
    with pytest.raises(BadInput, match=told.format("gated_all", "gpt_neox", "mlp_in, mlp_both")):
        _smoke(**{"constraint.variant": "gated_all"})


@pytest.mark.parametrize(
    ("change", "value"),
    [
        *(("seed", value) for value in ('"3"', 3.5, "forty-two", "'42'", "")),
        *(("budget.epochs", '"1"'), ("budget.epochs", -1), ("budget.effective_batch_examples", 32.5)),
    ],
)
def test_a_wrong_type_or_range_is_refused_with_its_key_and_value(change, value):
    with pytest.raises(BadInput, match=change.replace(".", r"\.") + ".*it is"):
        _smoke(**{change: value})


def test_numbers_as_people_write_them():
    assert _smoke(**{"budget.learning_rate": "1e-5"}).budget.learning_rate == 1e-5
    study = _smoke(**{"execution.checkpoint_stall_share": "0.5"})
    trainings = [TrainConfig.of(study, **fields) for arm in study.arms for fields in study.training_fields(arm)]
    assert len(trainings) >= 2 and {training.execution.checkpoint_stall_share for training in trainings} == {0.5}


@pytest.mark.parametrize("change", ["nonsense", "=1", "seed.x=1", "text.packages=[a"])
def test_a_malformed_set_is_refused(change):
    with pytest.raises(BadInput, match="--set"):
        settings.read_study(ROBUSTNESS, "smoke", [change], None)


def test_an_unknown_profile_lists_the_profiles(tmp_path):
    with pytest.raises(BadInput, match=r"'quik'.*pythia-1\.4b, pythia-2\.8b.*quick, smoke"):
        settings.read_study(ROBUSTNESS, "quik", [], None)
    with pytest.raises(BadInput, match="there is no file"):
        settings.read_study(ROBUSTNESS, str(tmp_path / "mine.yaml"), [], None)
    (tmp_path / "mine.yaml").write_text("- 1\n")
    with pytest.raises(BadInput, match="must hold keys and values"):
        settings.read_study(ROBUSTNESS, str(tmp_path / "mine.yaml"), [], None)


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("uat.text_tokens", 30, "uat.trigger_tokens and uat.text_tokens are 33 tokens together"),
        ("hotflip.text_tokens", 33, "hotflip.text_tokens 33 is more than sequence_length 32"),
        ("hotflip.flips", 13, "hotflip.flips 13 is more than half of hotflip.text_tokens, 12: lower it"),
        (
            "hotflip.documents",
            11,
            "hotflip.documents 11 is more than splits.attack_evaluation_documents 10: raise that key, which makes "
            "another text, so that everything from setup on runs anew, or lower hotflip.documents",
        ),
    ],
)
def test_an_attack_that_does_not_fit_is_refused_before_anything_runs(change, value, message):
    with pytest.raises(BadInput, match=message) as caught:
        _smoke(**{change: value})
    assert len(str(caught.value)) < 250, "it names the keys, and does not recite the whole study"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": "[monotonic, own-signs]"}, "arms lacks baseline: the study compares these two, and placebos beside"),
        ({"arms": "[]"}, "arms lacks baseline and monotonic: "),
        ({"arms": "[baseline, monotonic, own-signs, own-signs]"}, "arms has own-signs twice: give each once"),
        (
            {"arms": "[baseline, monotonic, random]"},
            r"arms\.2: must be 'baseline', .*'random-signs'.* \(it is 'random'\)",
        ),
        (
            {"arms": "[baseline, monotonic, shifted]", "constraint.start": "shifted"},
            "the arm shifted is the monotonic arm with this constraint: leave it out of arms",
        ),
        ({"constraint.by": "softplus"}, r"constraint: by is no key any more: max\(W, 0\) follows each step"),
        ({"name": "a/b"}, r"name: must be letters, digits and \. _ -, of which the first .* \(it is 'a/b'\)"),
        (
            {"model": "{source: hub, model: a/b, revision: main, dtype: float32}"},
            r"model\.revision: must be 40 hexadecimal digits of a commit, since a branch such as main moves",
        ),
        ({"budget.patience_validations": 3}, r"budget\.patience_validations: all arms must train"),
        ({"budget": 3}, r"budget: must be a group of keys and values \(it is 3\)"),
        ({"snapshots": "[0.5, 1.0]"}, r"snapshots\.1: must be less than 1 \(it is 1\.0"),
        ({"snapshots": "[0.0]"}, r"snapshots\.0: must be greater than 0"),
        ({"snapshots": "[0.5, 0.25]"}, r"snapshots \[0\.5, 0\.25\]: give each share once, the smallest first"),
        ({"learning_rates": "[0.001, 0.001]"}, r"learning_rates has 0\.001 twice: give each once"),
        ({"learning_rates": "[0.0]"}, r"learning_rates\.0: must be greater than 0 \(it is 0\.0"),
        ({"primary.attack": "pgd"}, r"primary\.attack: must be 'uat' or 'hotflip' \(it is 'pgd'\)"),
        ({"primary.margin_nats_per_token": 0}, r"primary\.margin_nats_per_token: must be greater than 0 \(it is 0"),
        (
            {"primary.measure": "increase_at_equal_loss"},
            "primary: measure is no key any more: the increase decides, and the report shows it at equal clean loss",
        ),
        ({"hotflip.writable_tokens": 1}, "hotflip: writable_tokens is no key any more: twice as many as hotflip.flips"),
    ],
    ids=lambda value: " ".join(f"{key}={one}" for key, one in value.items()) if isinstance(value, dict) else "",
)
def test_a_comparison_that_would_mean_nothing_is_refused_before_anything_runs(changes, message):
    with pytest.raises(BadInput, match=message):
        _smoke(**changes)


def test_a_key_that_is_gone_says_what_to_do_and_its_default_in_a_kept_study_is_let_through():
    with pytest.raises(
        BadInput, match=r"(?s)quick.*unequal_budgets is no key any more: all arms train on budget: leave"
    ):
        settings.read_study(ROBUSTNESS, "quick", ["unequal_budgets={reason: more to recover}"], None)
    assert _smoke(unequal_budgets="null") == _smoke()
    assert AggregateConfig.of(_smoke()).scientific()["unequal_budgets"] is None, (
        "as in the fingerprints of finished runs"
    )


def test_two_arms_that_are_one_experiment_are_refused():
    study = _smoke()
    walk = Walk("/nonexistent", "smoke")
    text = walk(robustness.SETUP, SetupConfig.of(study, tokenizer=study.tokenizer))
    base = walk(robustness.BASE_MODEL, BaseConfig.of(study, **study.base_fields), text=text)
    (fields,) = study.training_fields("baseline")
    training = TrainConfig.of(study, **fields)
    walk(robustness.TRAIN_BASELINE, training, text=text, start=base)
    with pytest.raises(BadInput, match="train-baseline and train-monotonic are called with equal scientific fields"):
        walk(robustness.TRAIN_MONOTONIC, training, text=text, start=base)


def test_a_choice_of_sources_is_a_form_in_the_ui_and_not_a_text_box():
    """The Prefect UI renders anyOf as tabs with fields, and oneOf as a box for JSON."""

    class Whole(Study):
        """All of its keys are shown."""

        CHANGED_FIRST = ()

    study = TypeAdapter(Annotated[Whole, Form(Whole)]).json_schema()["properties"]
    for field in ("text", "model"):
        assert len(study[field]["anyOf"]) == 3 and "oneOf" not in study[field]
    assert "sweep_seeds" not in study and list(study)[-1] == "execution" and len(study) == len(Study.model_fields) - 1


def test_the_form_shows_what_one_changes_first_with_units_and_limits():
    """In the order of CHANGED_FIRST; a key that it does not show is kept by the UI, as the profile says."""
    shown = parameter_schema(robustness.robustness).model_dump_for_openapi()["definitions"]["Study"]["properties"]
    paths = [
        f"{name}.{inner}" if inner else name for name, value in shown.items() for inner in value.get("properties", [""])
    ]
    assert paths == list(Study.CHANGED_FIRST) and len(paths) < 12
    assert shown["seed"]["description"].endswith("(>= 0)")
    assert shown["budget"]["properties"]["epochs"]["description"].endswith("(in epochs, > 0)")
    assert shown["execution"]["properties"]["micro_batch_examples"]["description"].endswith("effective batch. (>= 1)")


@pytest.mark.parametrize("name", page_names())
def test_the_form_has_the_defaults_of_the_study_not_of_the_classes_of_its_groups(name):
    """What the form shows is what is started, and what `ratchet run` starts: the same runs."""
    page = load_page(name)
    shown = TypeAdapter(Annotated[page.model, Form(page.model)]).json_schema()["properties"]
    for group, value in shown.items():
        default = page.model.model_fields[group].default
        for inner, field in value.get("properties", {}).items() if isinstance(default, Configuration) else ():
            assert field["default"] == default.model_dump(mode="json")[inner], f"{group}.{inner}"
    if name == "icecube":
        assert shown["budget"]["properties"]["learning_rate"]["default"] == 3e-4


def test_relative_paths_are_those_of_the_folder_where_the_study_is_started(tmp_path, monkeypatch):
    """A job works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    assert LocalFiles(paths=["texts/a.txt", "/data/b.txt"]).paths == [f"{tmp_path}/texts/a.txt", "/data/b.txt"]
    assert PretrainedDirectory(source="directory", path="model").path == f"{tmp_path}/model"
    assert Execution(cache_folder="~/cache").cache_folder == str(Path.home() / "cache")
    assert Execution().cache_folder == "", "no folder is none"
