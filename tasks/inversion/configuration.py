"""The keys of the inversion study: matrices, network, arms, probe."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tasks.stage.configuration import Configuration, execution, scientific

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


class Probe(Configuration):
    """Questions about the negatives that a trained network would be given."""

    times: list[int] = scientific(
        [1, 5], min_length=1, description="Steps of the diffusion at which negatives are made."
    )
    descent_steps: list[int] = scientific(
        [1, 2, 10, 20], min_length=1, description="Steps down the energy; each is looked at."
    )
    matrices: int = scientific(256, ge=2, description="Matrices of validation that are looked at.")
    false_negative_distance: float = scientific(
        0.25, gt=0, description="A negative nearer to the inverse than this, relative to it, is a false one."
    )


class Pilot(Configuration):
    """A short training without negatives, which must learn before anything else is trained."""

    steps: int = scientific(1000, ge=1, description="Optimizer steps.")
    max_ratio: float = scientific(
        0.9, gt=0, le=1, description="Its error may be so much of what the better of zero and mean gets."
    )
