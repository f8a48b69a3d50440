"""What makes no sense is refused by name, before anything is trained; what the document planned is a profile."""

from pathlib import Path
from typing import Any

import pytest

from deployments.dag.walk import Walk
from flows.command import settings
from storage.errors import BadInput
from tasks.inversion.study import Study
from tests.tasks.inversion.tiny import SMOKE, smoke

ADVERSARIAL = "{name: a, strategy: adversarial}"
NONE = "{name: none}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("seeds=[0, 1, 0]", "seeds has 0 twice"),
        ("seeds=[]", "at least 1 item"),
        (f"arms=[{NONE}, {ADVERSARIAL}, {ADVERSARIAL.replace('a,', 'b,')}]", "the arms a and b are the same training"),
        (f"arms=[{NONE}, {NONE}]", "arms has none twice"),
        (f"arms=[{NONE}]", "at least 2 items"),
        (f"arms=[{ADVERSARIAL}, {{name: b, strategy: random}}]", "reference none is none of the arms: a, b"),
        (
            "arms=[{name: none, noise_scale: 2.0}, {name: a, strategy: random}]",
            "gives noise_scale, which strategy none",
        ),
        (
            "arms=[{name: none}, {name: a, strategy: random, descent: as-published}]",
            "which strategy random never reads",
        ),
        ("arms=[{name: none}, {name: a, strategy: clever}]", "strategy"),
        ("arms=[{name: none}, {name: a, strategy: random, descent_setps: 3}]", "descent_steps"),
        ("budget={epochs: 2.0, effective_batch_examples: 32}", "give budget.steps"),
        ("budget.effective_batch_examples=64", "micro_batch_examples 32 below budget.effective_batch_examples 64"),
        ("execution.fit_memory=true", "or halved, it would be another training"),
        ("budget.effective_batch_examples=-1", "effective_batch_examples"),
        ("matrices.diagonal_in=0.0", "diagonal_in"),
        ("min_seeds=1", "min_seeds"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(change: str, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("[", r"\[")):
        smoke(change)


def test_a_published_descent_is_compared_with_the_corrected_one_of_the_same_arm() -> None:
    assert Study(name="s", execution={"micro_batch_examples": 2048}).comparisons == [
        ["random", "none"],
        ["adversarial", "none"],
        ["adversarial-as-published", "none"],
        ["adversarial-as-published", "adversarial"],
    ]


def trained(study: Study, cell: str) -> Any:
    """The configuration of a training on the page."""
    return SMOKE.run(Path("/nonexistent"), study, Walk)[f"inversion-train ({cell})"].config


def test_arms_of_one_seed_differ_in_their_negatives_alone() -> None:
    one, other = (trained(smoke(), f"{arm}, seed 1").scientific() for arm in ("none", "adversarial"))
    assert {name for name in one if one[name] != other[name]} == {"mining"}


PLAN = {
    "inversion": {"none", "random", "adversarial", "adversarial-as-published"},
    "steps": {f"steps-{number}" for number in (1, 3, 5, 10, 20)},
    "step-size": {f"step-{number}" for number in ("0.01", "0.05", "0.1", "0.5", "1")},
    "noise": {f"noise-{number}" for number in ("0.01", "0.1", "0.5", "1", "2")},
    "mixture": {"none", "random", "adversarial", "mixed"},
    "stability": {"none", "none-cosine", "adversarial", "adversarial-cosine"},
    "early-stop": {"none", "random", "adversarial", "adversarial-as-published"},
}


@pytest.mark.parametrize("profile", PLAN)
def test_everything_that_the_document_planned_is_a_profile_at_its_own_size(profile: str) -> None:
    study = settings.read_study(SMOKE.page, profile, [], None)
    assert {arm.name for arm in study.arms} >= PLAN[profile]
    assert (study.matrices.rank, study.network.diffusion_steps, study.budget.steps) == (20, 10, 100_000)
    assert study.budget.effective_batch_examples == 2048 and study.seeds == list(range(10))
    assert study.budget.validations_per_epoch == 20


def test_an_arm_may_go_without_clipping() -> None:
    study = Study(name="s", arms=[{"name": "none"}, {"name": "free", "max_gradient_norm": 1e9, "against": "none"}])
    norms = [trained(study, f"{arm}, seed 0").budget.max_gradient_norm for arm in ("none", "free")]
    assert norms == [study.budget.max_gradient_norm, 1e9]


def test_an_arm_may_be_against_another_one_and_no_two_are_compared_twice() -> None:
    """Whether cosine helps mining is not answered by each against the reference."""
    cosine = [
        {"name": "none"},
        {"name": "mined", "strategy": "adversarial"},
        {"name": "mined-cosine", "strategy": "adversarial", "decay": "cosine", "against": "mined"},
    ]
    of_reference = [["mined", "none"], ["mined-cosine", "none"]]
    assert Study(name="s", arms=cosine).comparisons == [*of_reference, ["mined-cosine", "mined"]]
    both = [
        {"name": "mined", "strategy": "adversarial"},
        {"name": "as-published", "strategy": "adversarial", "descent": "as-published", "against": "mined"},
    ]
    once = {"name": "s", "arms": both, "reference": "mined", "execution": {"micro_batch_examples": 2048}}
    assert Study(**once).comparisons == [["as-published", "mined"]]
    for against in ("mined-cosine", "nobody"):
        with pytest.raises(ValueError, match=f"mined-cosine is against {against}, which is no other arm"):
            Study(name="s", arms=[*cosine[:2], cosine[2] | {"against": against}])
