"""A study of two stages for the real cluster: a training as long and as troublesome as wanted, and one that reads it.

How long a step takes, and what comes in between, are execution fields: the toy ends with the same bytes however it got
there, so that a run here without any delay says what a run through many jobs must give. What the stages do stands in
toy_work.py: the page is read by many processes, and torch takes each of them two seconds.
"""

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics
from tasks.stage.run import Stage
from tasks.stage.study import StageConfiguration, StudyBase
from tests.tasks.toy_config import ToyConfig

STEPS_PER_EPOCH = 6
HOW = Execution(micro_batch_examples=4, cpu_threads=1, checkpoint_every_steps=1)


class TrainingConfig(ToyConfig):
    """The toy training of tests/tasks/tiny.py, slower."""

    step_seconds: float = execution(0.0, description="How long each step rests.")
    pauses_while: str = execution(
        "", description="A file; while it is there an attempt takes one step, and then rests."
    )
    check_fails_while: str = execution("", description="A file; while it is there a check of the first step fails.")
    bad_input_while: str = execution("", description="A file; while it is there the stage refuses to begin.")
    said_in: str = execution("", description="A file whose text the result repeats, as if the work were not certain.")
    memory_mb: int = execution(0, description="Memory that it takes beside what it needs.")
    execution: Execution = execution(HOW, description="How it runs: a checkpoint after each step.")


class TellConfig(StageConfiguration):
    """Nothing to choose."""

    numerics = Numerics(torch=False)


class Study(StudyBase):
    """The toy as a study."""

    seed: int = scientific(3, description="Order of the examples.")
    training: TrainingConfig = scientific(TrainingConfig(), description="The stage `toy-training`.")
    execution: Execution = execution(HOW, description="How, and what its jobs ask for.")


TRAIN = Stage("toy-training", TrainingConfig, "tests.slurm.toy_work:train_toy", needs="cpu")
TELL = Stage("toy-report", TellConfig, "tests.slurm.toy_work:tell", needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    return stage(TELL, TellConfig(), trained=stage(TRAIN, study.training))


toy = study_flow(page)
