"""The inversion study, typed: what a person writes in a profile, the UI's form, or `--set`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from tasks.findings.configuration import Audit
from tasks.inversion.configuration import Arm, Matrices, Network, Pilot, Probe
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.study import StudyBase
from tasks.stage.validation import require_at_most, require_different, require_once
from tasks.training.budget import Budget, LearningGate

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
    probe: Probe = scientific(Probe(), description="What is asked of the negatives.")
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

    @model_validator(mode="after")
    def _probe_can_look(self) -> Study:
        if late := [time for time in self.probe.times if not 0 <= time < self.network.diffusion_steps]:
            raise ValueError(
                f"probe.times has {late[0]}, and the diffusion has the steps 0 to {self.network.diffusion_steps - 1}"
            )
        known = self.matrices.validation_matrices
        require_at_most("probe.matrices", self.probe.matrices, "matrices.validation_matrices", known)
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
