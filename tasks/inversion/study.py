"""The inversion study, typed: what a person writes, and what each of its stages is given."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from tasks.inversion.configuration import Arm, Matrices, Network, Pilot, Probe
from tasks.inversion.stages import AuditConfig, MatricesConfig, PilotConfig, ProbeConfig, ReportConfig, TrainConfig
from tasks.report.configuration import Audit
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.study import StudyBase
from tasks.training.budget import Budget, LearningGate

ARMS = [
    Arm(name="none"),
    Arm(name="random", strategy="random"),
    Arm(name="adversarial", strategy="adversarial"),
    Arm(name="adversarial-as-published", strategy="adversarial", descent="as-published"),
]
"""The recorded study's three, and its descent as its code has it."""
EACH_10_STEPS = 0.995
"""Of the recorded average of the weights, which takes them in every ten steps."""
RECORDED = Budget(
    steps=100_000,
    effective_batch_examples=2048,
    learning_rate=1e-4,
    warmup_ratio=0.0,
    decay="constant",
    beta_2=0.99,
    weight_decay=0.0,
    ema_decay=round(EACH_10_STEPS ** (1 / 10), 6),
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
        "name",
        "seed",
        "seeds",
        "matrices.rank",
        "budget.steps",
        "budget.learning_rate",
        "arms",
        "execution.device",
        "execution.micro_batch_examples",
    )

    @model_validator(mode="after")
    def _arms_are_told_apart(self) -> Study:
        names = [arm.name for arm in self.arms]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"arms names {', '.join(twice)} twice: give each a name of its own")
        first: dict[str, str] = {}
        for arm in self.arms:
            given = f"{arm.mining!r} {self._budget_of(arm)!r}"
            if (other := first.setdefault(given, arm.name)) != arm.name:
                raise ValueError(f"the arms {other} and {arm.name} are the same training: leave one of them out")
        if self.reference not in names:
            raise ValueError(f"reference {self.reference} is none of the arms: {', '.join(names)}")
        if alone := [arm for arm in self.arms if arm.against not in (None, *names) or arm.against == arm.name]:
            raise ValueError(f"the arm {alone[0].name} is against {alone[0].against}, which is no other arm")
        return self

    @model_validator(mode="after")
    def _seeds_are_given_once(self) -> Study:
        if twice := sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1}):
            raise ValueError(f"seeds has {twice[0]} twice: it would count as two draws and be one. Give each seed once")
        return self

    @model_validator(mode="after")
    def _budget_is_in_steps(self) -> Study:
        if self.budget.steps is None:
            raise ValueError("budget.epochs has no meaning where no matrix comes twice: give budget.steps")
        return self

    @model_validator(mode="after")
    def _the_first_row_is_that_of_the_batch(self) -> Study:
        size, batch = self.execution.micro_batch_examples, self.budget.effective_batch_examples
        published = [arm.name for arm in self.arms if arm.uses_descent and arm.descent == "as-published"]
        if published and size < batch:
            raise ValueError(
                f"the arm {published[0]} is clamped by the first row of what is computed at once: with "
                f"execution.micro_batch_examples {size} below budget.effective_batch_examples {batch} it would be "
                "another training. Raise the first, or leave the arm out"
            )
        return self

    @model_validator(mode="after")
    def _probe_can_look(self) -> Study:
        if late := [time for time in self.probe.times if not 0 <= time < self.network.diffusion_steps]:
            raise ValueError(
                f"probe.times has {late[0]}, and the diffusion has the steps 0 to {self.network.diffusion_steps - 1}"
            )
        if self.probe.matrices > self.matrices.validation_matrices:
            raise ValueError(
                f"probe.matrices {self.probe.matrices} is more than matrices.validation_matrices "
                f"{self.matrices.validation_matrices}: lower it"
            )
        return self

    def for_matrices(self) -> MatricesConfig:
        return MatricesConfig(matrices=self.matrices, seed=self.seed, execution=self.execution)

    def for_pilot(self) -> PilotConfig:
        gate = LearningGate(max_ratio=self.pilot.max_ratio, by_step=self.pilot.steps)
        short = {"steps": self.pilot.steps, "not_learning": gate, "ema_decay": None, "validations_per_epoch": 1}
        return PilotConfig(budget=self.budget.model_copy(update=short), seed=self.seed, **self._trains())

    def for_cells(self) -> dict[str, TrainConfig]:
        """Role of each cell on the page, `<arm>-<seed>` -> its configuration."""
        return {
            cell_role(arm.name, seed): TrainConfig(
                mining=arm.mining,
                budget=self._budget_of(arm),
                seed=seed,
                cell=f"{arm.name}, seed {seed}",
                **self._trains(),
            )
            for arm in self.arms
            for seed in self.seeds
        }

    def first_cells(self) -> dict[str, str]:
        """Arm -> role of its cell with the first seed, whose network is looked at."""
        return {arm.name: cell_role(arm.name, self.seeds[0]) for arm in self.arms}

    def for_probe(self) -> ProbeConfig:
        return ProbeConfig(
            network=self.network,
            probe=self.probe,
            seed=self.seed,
            execution=self.execution,
        )

    def for_audit(self) -> AuditConfig:
        return AuditConfig(network=self.network, seed=self.seed, audit=self.audit, execution=self.execution)

    def for_report(self) -> ReportConfig:
        return ReportConfig(
            study=self.name,
            arms=[arm.name for arm in self.arms],
            seeds=self.seeds,
            comparisons=self.comparisons,
            confidence_level=self.confidence_level,
            min_seeds=self.min_seeds,
            learned_ratio=self.learned_ratio,
            configuration=self.scientific(),
            profile=self.model_dump(mode="json"),
            execution=self.execution,
        )

    @property
    def comparisons(self) -> list[list[str]]:
        """Each arm with the reference and with the one that it is against, and each as-published descent with the
        corrected one of the same arm; no two arms twice."""
        found = [[arm.name, self.reference] for arm in self.arms if arm.name != self.reference]
        found += [[arm.name, arm.against] for arm in self.arms if arm.against]
        corrected = {f"{arm.mining!r} {self._budget_of(arm)!r}": arm.name for arm in self.arms}
        for arm in self.arms:
            if arm.uses_descent and arm.descent == "as-published":
                other = arm.mining.model_copy(update={"descent": "corrected"})
                if name := corrected.get(f"{other!r} {self._budget_of(arm)!r}"):
                    found.append([arm.name, name])
        first = {frozenset(pair): pair for pair in reversed(found)}
        return [pair for pair in found if first[frozenset(pair)] is pair]

    def _budget_of(self, arm: Arm) -> Budget:
        given = {name: getattr(arm, name) for name in ("decay", "max_gradient_norm")}
        return self.budget.model_copy(update={name: one for name, one in given.items() if one is not None})

    def _trains(self) -> dict[str, Any]:
        return {"matrices": self.matrices, "network": self.network, "execution": self.execution}


def cell_role(arm: str, seed: int) -> str:
    """What the page calls the handle of an arm with a seed."""
    return f"{arm}-{seed}"
