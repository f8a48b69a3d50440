"""The configuration of the toy training of tiny.py, which a page reads without loading torch."""

from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.run import Stage
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget


class ToyConfig(StageConfiguration):
    """A regression that trains in milliseconds."""

    budget: Budget = scientific(
        Budget(epochs=2.0, effective_batch_examples=8, learning_rate=0.05), description="What it may spend."
    )
    seed: int = scientific(3, description="Order of the examples.")
    examples: int = scientific(45, description="Training examples; the default leaves a last window of 5.")
    dropout: float = scientific(0.3, description="Dropout, which draws from the generator in every step.")
    noise: float = scientific(0.0, description="Noise on the inputs, another one in each epoch.")
    weighted: bool = scientific(False, description="An example weighs as much as it has tokens: one to three.")
    metrics: list[str] = scientific([], description="The metrics by name, of which the first decides; empty: a loss.")
    higher: list[str] = scientific([], added_later=True, description="Metrics of which higher is better.")
    files: list[int] = scientific([], description="How many examples each file holds; two are read at a time.")
    trivial: float = scientific(0.0, description="What a method without learning gets; 0: nobody says.")
    poisoned_loss: int | None = scientific(None, description="The example whose loss is not finite.")
    poisoned_gradient: int | None = scientific(None, description="The example whose gradient is not finite.")
    execution: Execution = execution(Execution(micro_batch_examples=4, cpu_threads=1), description="How.")


TOY = Stage("toy", ToyConfig, "tests.tasks.tiny:train_toy")
