"""The inversion study, typed: what a person writes in a profile, the UI's form, or `--set`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.findings.configuration import Audit
from tasks.stage.configuration import Configuration, execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.study import StudyBase
from tasks.stage.validation import require_different, require_once
from tasks.training.budget import Budget, LearningGate

Strategy = Literal["none", "random", "adversarial", "mixed"]
DescentName = Literal["corrected", "as-published"]


class Matrices(Configuration):
    """The matrices: A = 2 M M^T + d I, with M uniform in (-1, 1)."""

    rank: int = scientific(20, ge=1, description="Rows and columns of a matrix.")
    diagonal_in: float = scientific(0.5, gt=0, description="d of the matrices that are trained and validated on.")
    diagonal_out: float = scientific(0.1, gt=0, description="d of the matrices out of distribution, which are harder.")
    validation_matrices: int = scientific(
        5632, ge=2, description="Matrices to validate on, the same for all arms and seeds; as many out of distribution."
    )
    standardise_inputs: bool = scientific(
        True,
        description="Subtract the mean of the entries of A and divide by their deviation; the recorded study did not.",
    )

    @property
    def entries(self) -> int:
        return self.rank**2


class Network(Configuration):
    """The energy network and its diffusion."""

    width: int = scientific(512, ge=1, description="Width of the three hidden layers.")
    diffusion_steps: int = scientific(10, ge=1, description="Steps of the diffusion (T).")
    sampling_descent_steps: int = scientific(
        5, ge=0, description="Steps down the energy after each step of the diffusion, when an inverse is sought."
    )


class Mining(Configuration):
    """The negatives that a training contrasts with the truth."""

    strategy: Strategy = scientific("none", description="Where negatives come from; none: only noise is predicted.")
    descent: DescentName = scientific(
        "corrected",
        description="Steps down the energy for adversarial ones: corrected, row by row; as-published, twice as long "
        "after the first and clamped by the first row of the batch.",
    )
    descent_steps: int = scientific(2, ge=1, description="Steps down the energy for an adversarial negative.")
    step_scale: float = scientific(1.0, gt=0, description="Their length, as a multiple of the schedule's.")
    noise_scale: float = scientific(3.0, gt=0, description="Deviation of the noise that they begin with.")
    adversarial_share: float = scientific(0.3, gt=0, lt=1, description="Of strategy mixed; the others are random.")
    contrast_weight: float = scientific(0.5, gt=0, description="Weight of the contrast in the loss.")

    @property
    def uses_descent(self) -> bool:
        return self.strategy in ("adversarial", "mixed")


class Arm(Mining):
    """One of the trainings that are compared; each is made with every seed."""

    name: str = execution(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", description="Names the arm in every table.")
    decay: Literal["linear", "constant", "cosine"] | None = scientific(
        None, description="The learning rate after the warm-up; empty: that of the budget."
    )
    max_gradient_norm: float | None = scientific(
        None, gt=0, description="Clips the gradients of this arm; empty: that of the budget. 1e9 takes clipping away."
    )
    against: str | None = execution(
        None, description="Another arm that this one is compared with, beside the reference; empty: none."
    )

    @model_validator(mode="after")
    def _says_only_what_is_used(self) -> Arm:
        """A key that the strategy does not read would make two equal arms look different."""
        default = Mining()
        used = {"strategy"} | ({"contrast_weight"} if self.strategy != "none" else set())
        if self.uses_descent:
            used |= {"descent", "descent_steps", "step_scale", "noise_scale"}
        if self.strategy == "mixed":
            used |= {"adversarial_share"}
        idle = [
            name for name in Mining.model_fields if name not in used and getattr(self, name) != getattr(default, name)
        ]
        if idle:
            raise ValueError(
                f"the arm {self.name} gives {idle[0]}, which strategy {self.strategy} never reads: leave it out"
            )
        return self

    @property
    def mining(self) -> Mining:
        return self.part(Mining)


class Pilot(Configuration):
    """A short training without negatives, which must learn before anything else is trained."""

    steps: int = scientific(1000, ge=1, description="Optimizer steps.")
    max_ratio: float = scientific(
        0.9, gt=0, le=1, description="Its error may be so much of what the better of zero and mean gets."
    )


ARMS = [
    Arm(name="none"),
    Arm(name="random", strategy="random"),
    Arm(name="adversarial", strategy="adversarial"),
    Arm(name="adversarial-as-published", strategy="adversarial", descent="as-published"),
]
"""The recorded study's three, and its descent as its code has it."""
RECORDED = Budget(
    steps=100_000,
    effective_batch_examples=2048,
    learning_rate=1e-4,
    warmup_ratio=0.0,
    decay="constant",
    beta_2=0.99,
    weight_decay=0.0,
    ema_decay=round(0.995 ** (1 / 10), 6),  # the recorded average takes the weights in every ten steps
    validations_per_epoch=20,
)


class Study(StudyBase):
    """One configured experiment: matrices, network, arms, seeds."""

    seed: int = scientific(
        0, ge=0, description="Of the matrices to validate on, and of the pilot; the same for all arms."
    )
    seeds: list[Annotated[int, Field(ge=0)]] = scientific(
        list(range(10)),
        min_length=1,
        description="Each arm is trained with each of them; equal seeds have equal draws.",
    )
    matrices: Matrices = scientific(Matrices(), description="What is inverted.")
    network: Network = scientific(Network(), description="The energy network and its diffusion.")
    arms: list[Arm] = scientific(ARMS, min_length=2, description="The trainings that are compared.")
    reference: str = scientific("none", description="Name of the arm that each other one is compared with.")
    pilot: Pilot = scientific(Pilot(), description="What must learn before anything else is trained.")
    budget: Budget = scientific(
        RECORDED, description="What each training may spend; in steps. Each matrix is seen once."
    )
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")
    min_seeds: int = scientific(3, ge=2, description="Of fewer seeds nothing is called better.")
    learned_ratio: float = scientific(
        0.9, gt=0, le=1, description="An arm whose error is above this share of the better trivial one has not learned."
    )
    audit: Audit = scientific(Audit(), description="What is computed again, by a plain path, before the report.")
    execution: Execution = execution(Execution(), description="How the work is done on this machine.")

    CHANGED_FIRST: ClassVar[tuple[str, ...]] = (
        "name", "seed", "seeds", "matrices.rank", "budget.steps", "budget.learning_rate", "arms", "execution.device",
        "execution.micro_batch_examples",
    )  # fmt: skip

    @model_validator(mode="after")
    def _arms_are_told_apart(self) -> Study:
        names = [arm.name for arm in self.arms]
        require_once("arms", names, "give each a name of its own")
        require_different("arms", {arm.name: (arm.mining, self.budget_of(arm)) for arm in self.arms})
        require_once("seeds", self.seeds, "it would count as two draws and be one. Give each seed once")
        if self.reference not in names:
            raise ValueError(f"reference {self.reference} is none of the arms: {', '.join(names)}")
        if alone := [arm for arm in self.arms if arm.against not in (None, *names) or arm.against == arm.name]:
            raise ValueError(f"the arm {alone[0].name} is against {alone[0].against}, which is no other arm")
        return self

    @model_validator(mode="after")
    def _budget_and_batch_fit_the_arms(self) -> Study:
        if self.budget.steps is None:
            raise ValueError("budget.epochs has no meaning where no matrix comes twice: give budget.steps")
        size, batch = self.execution.micro_batch_examples, self.budget.effective_batch_examples
        published = [arm.name for arm in self.arms if arm.uses_descent and arm.descent == "as-published"]
        if published and (size < batch or self.execution.fit_memory):
            raise ValueError(
                f"the arm {published[0]} is clamped by the first row of what is computed at once: with "
                f"execution.micro_batch_examples {size} below budget.effective_batch_examples {batch}, or halved, it "
                "would be another training. Raise the first, or leave the arm out"
            )
        return self

    @property
    def comparisons(self) -> list[list[str]]:
        """Each arm with the reference and with the one that it is against, and each as-published descent with the
        corrected one of the same arm; no two arms twice."""
        pairs = [[arm.name, self.reference] for arm in self.arms if arm.name != self.reference]
        pairs += [[arm.name, arm.against] for arm in self.arms if arm.against]
        corrected = {f"{arm.mining!r} {self.budget_of(arm)!r}": arm.name for arm in self.arms}
        for arm in self.arms:
            if arm.uses_descent and arm.descent == "as-published":
                other = arm.mining.model_copy(update={"descent": "corrected"})
                if name := corrected.get(f"{other!r} {self.budget_of(arm)!r}"):
                    pairs.append([arm.name, name])
        first = {frozenset(pair): pair for pair in reversed(pairs)}
        return [pair for pair in pairs if first[frozenset(pair)] is pair]

    @property
    def pilot_budget(self) -> Budget:
        gate = LearningGate(max_ratio=self.pilot.max_ratio, by_step=self.pilot.steps)
        short = {"steps": self.pilot.steps, "not_learning": gate, "ema_decay": None, "validations_per_epoch": 1}
        return self.budget.model_copy(update=short)

    def budget_of(self, arm: Arm) -> Budget:
        own = {"decay", "max_gradient_norm"}
        return self.budget.model_copy(update=arm.model_dump(include=own, exclude_none=True))
