"""The settings for a stage's work on a machine: recorded with each attempt, never part of a fingerprint."""

from typing import Any, ClassVar, Literal

from storage.permissions import Permissions
from tasks.stage.configuration import Configuration, LocalPath, execution


class Execution(Configuration):
    """Settings for the work on this machine; none is part of a fingerprint."""

    REMOVED: ClassVar = {"max_epochs_per_run": (None, "give max_steps_per_run")}

    device: Literal["auto", "cpu", "cuda"] = execution(
        "cpu",
        description="auto takes a GPU where there is one; cuda fails where there is none.",
    )
    cpu_threads: int = execution(2, ge=1, description="Threads of torch, NumPy and their libraries: numerics.")
    deterministic: bool = execution(True, description="Deterministic algorithms only; part of the numerics.")
    micro_batch_examples: int = execution(
        8, ge=1, description="Examples in one training forward pass; accumulated up to the effective batch."
    )
    fit_memory: bool = execution(
        False,
        description="Where a training runs out of memory, halve the micro-batch and make the same step again, with the "
        "same effective batch. Each halving becomes part of the numerics, and the result says so.",
    )
    compile: Literal["none", "default"] = execution(
        "none",
        description="default compiles the steps of trainings and the searches of attacks (torch.compile); where that "
        "fails, the stage ends and says what to set. Part of the numerics.",
    )
    gradient_checkpointing: bool = execution(
        False, description="Recompute activations going backward: less memory, more time."
    )
    loader_workers: int = execution(
        0, ge=0, description="Threads that make the coming micro-batches ahead; 0 makes each when it is needed."
    )
    checkpoint_every_steps: int | None = execution(
        None, ge=1, description="Steps between checkpoints; empty means only at validations and by time."
    )
    checkpoint_every_seconds: float = execution(300.0, gt=0, description="Seconds between checkpoints.")
    checkpoint_stall_share: float = execution(
        0.03,
        gt=0,
        le=1,
        description="Share of the training time that checkpoints may cost; where more is measured, "
        "checkpoint_every_seconds is widened.",
    )
    keep_checkpoints: int = execution(2, ge=1, description="Newest checkpoints that are kept, beside the best.")
    stall_minutes: float = execution(
        30.0,
        gt=0,
        description="Minutes without a step after which a training, evaluation or attack is ended as hung, with the "
        "stacks of its threads in the log.",
    )
    max_steps_per_run: int | None = execution(
        None, ge=1, description="Optimizer steps that one attempt may train before it stops to be continued."
    )
    allow_numerics_change: bool = execution(
        False,
        description="Let a continuation run on other numerics (device, threads, ...); tables then say so.",
    )
    resources: dict[str, dict[str, Any]] = execution(
        {},
        description="What SLURM jobs of this study ask for where it differs from the site, by stage name or `all`: "
        "{train-baseline: {time_limit_minutes: 600, memory_gb: 120}}.",
    )
    permissions: Permissions = execution(
        "umask",
        description="Who else on the machine may read what the study keeps: group, or nobody (private); umask: as this "
        "machine has it.",
    )
    cache_folder: LocalPath = execution(
        "", description="Folder for extracted text and hub downloads; empty means .cache in the runs folder."
    )
