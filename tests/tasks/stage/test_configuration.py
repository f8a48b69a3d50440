"""What a configuration's class promises, and what a person may leave out."""

from typing import ClassVar

import pytest
from pydantic import ValidationError

from deployments.dag.walk import Walk
from storage.errors import BadInput
from tasks.stage.configuration import Configuration, execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.run import Stage
from tasks.stage.study import StageConfiguration, StudyBase
from tasks.training.budget import Budget, LearningGate


class OwnStudy(StudyBase):
    budget: Budget = scientific(Budget(steps=40, learning_rate=0.5), description="What a training may spend.")


class WorkConfig(StageConfiguration):
    """One stage."""


WORK = Stage("work", WorkConfig, f"{__name__}:test_a_stage_works_as_its_study_says_unless_it_says_otherwise")


def test_who_gives_one_key_of_a_group_leaves_the_others_as_they_are():
    """Seen: `--set budget.steps=400` took the page's learning rate back to that of the class, without a word."""
    study = OwnStudy.model_validate({"name": "own", "budget": {"steps": 7}})
    assert (study.budget.steps, study.budget.learning_rate) == (7, 0.5)
    assert OwnStudy.model_validate(study.model_dump(mode="json")) == study


def test_a_group_in_a_group_too(tmp_path):
    gate = LearningGate(max_ratio=0.5, by_step=9)

    class Gated(StudyBase):
        budget: Budget = scientific(Budget(epochs=3.0, not_learning=gate), description="What a training may spend.")

    study = Gated.model_validate({"name": "own", "budget": {"not_learning": {"by_step": 5}}})
    assert study.budget == Budget(epochs=3.0, not_learning=LearningGate(max_ratio=0.5, by_step=5))
    by_steps = Gated.model_validate({"name": "own", "budget": {"steps": 50}}).budget
    assert (by_steps.epochs, by_steps.steps, by_steps.not_learning) == (None, 50, gate)


def test_a_stage_whose_execution_the_study_s_does_not_have_says_so(tmp_path):
    class OwnExecution(Execution):
        own_batch: int = execution(4, description="Examples at once.")

    class OwnConfig(StageConfiguration):
        execution: OwnExecution = execution(OwnExecution(), description="How.")

    stage = Stage("own", OwnConfig, "a:b")
    with pytest.raises(BadInput, match="stage own works as an OwnExecution says, and the study has a Execution"):
        Walk(tmp_path, "own", Execution())(stage, OwnConfig())


def test_a_study_is_not_called_as_the_link_to_the_newest_result():
    with pytest.raises(ValidationError, match="latest is what the link to the newest result is called"):
        StudyBase(name="latest")


def test_what_a_study_declares_a_stage_names_by_its_type_alone():
    """Seen: 55 fields of stages were described a second time, in other words."""

    class Chosen(StudyBase):
        width: int = scientific(3, ge=1, description="Width of the network.")
        later: int = scientific(7, added_later=True, description="A field that was added later.")
        place: str = execution("here", description="Where the files lie.")

    class ChosenConfig(StageConfiguration):
        STUDY = Chosen

        width: int
        later: int
        place: str
        seed: int
        depth: int = scientific(description="Depth of the network.")

    declared, again = Chosen.model_fields, ChosenConfig.model_fields
    assert all(again[name].description == declared[name].description for name in ("width", "later", "place", "seed"))
    config = ChosenConfig.of(Chosen(name="own", width=5, place="there", seed=9), depth=2)
    assert (config.width, config.place, config.execution) == (5, "there", Execution())
    assert config.scientific() == {"width": 5, "seed": 9, "depth": 2}
    with pytest.raises(ValidationError, match="width"):
        ChosenConfig(depth=2, seed=9)


@pytest.mark.parametrize("given", [{}, {"rule": "per-position"}])
def test_a_key_that_is_gone_stays_in_fingerprints_and_may_be_given_with_its_default(given):
    class Before(Configuration):
        rule: str = scientific("per-position", description="Which.")
        size: int = scientific(1, description="How many.")

    class Now(Configuration):
        REMOVED: ClassVar = {"rule": ("per-position", "leave it out")}

        size: int = scientific(1, description="How many.")

    assert Now.model_validate(given).scientific() == Before.model_validate(given).scientific()
    with pytest.raises(ValidationError, match="rule is no key any more: leave it out"):
        Now.model_validate({"rule": "sampled"})


def test_a_whole_group_replaces_what_its_default_says():
    given = Budget(epochs=2.0)
    assert OwnStudy(name="own", budget=given).budget == given


def test_a_stage_works_as_its_study_says_unless_it_says_otherwise(tmp_path):
    """Seen: a page forgot to hand it on, and `--set execution.max_steps_per_run` did nothing, without a word."""
    walk = Walk(tmp_path, "own", Execution(cpu_threads=7))
    handle = walk(WORK, WorkConfig())
    assert handle.config.execution.cpu_threads == 7
    other = Walk(tmp_path, "own", Execution(cpu_threads=7))(WORK, WorkConfig(execution=Execution(cpu_threads=3)))
    assert other.config.execution.cpu_threads == 3 and other.run == handle.run


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ({"__annotations__": {"hidden": int}, "hidden": 64}, r"Own\.hidden must be declared with scientific"),
        ({"__annotations__": {"hidden": int}}, r"Own\.hidden must be declared with scientific"),
    ],
)
def test_a_field_that_does_not_say_what_it_is_is_refused_where_its_class_is_defined(field, told):
    with pytest.raises(TypeError, match=told):
        type("Own", (Configuration,), field | {"__module__": __name__})


def test_the_name_that_tells_stages_apart_is_not_for_a_field_of_one_s_own():
    with pytest.raises(TypeError, match=r"Own\.cell: the name is reserved"):
        type(
            "Own",
            (StageConfiguration,),
            {"__annotations__": {"cell": int}, "cell": execution(3, description="a cell"), "__module__": __name__},
        )
