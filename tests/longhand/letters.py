"""Does dropout help a small network to predict the next letter of English text?"""

from ratchet import (
    Budget,
    Dispatcher,
    Handle,
    LearningGate,
    Numerics,
    Stage,
    StageConfiguration,
    StudyBase,
    scientific,
    study_flow,
)


class TextConfig(StageConfiguration):
    """letters-text: windows of text, split into train and validation."""

    numerics = Numerics(torch=False)

    context_letters: int = scientific(ge=1, description="Letters that the network sees.")


class TrainConfig(StageConfiguration):
    """letters-train: one network."""

    dropout: float = scientific(ge=0, lt=1, description="Share of the hidden units that a step leaves out.")
    budget: Budget = scientific(description="What the training may spend.")
    seed: int = scientific(ge=0, description="Initial weights, and the order of the examples.")


class ReportConfig(StageConfiguration):
    """letters-report: the report."""

    numerics = Numerics(torch=False)


class Study(StudyBase):
    """What a person may choose. Each key has a type, a default, limits and a description."""

    context_letters: int = scientific(8, ge=1, description="Letters that the network sees.")
    dropouts: list[float] = scientific([0.0, 0.2], min_length=2, description="One network is trained for each.")
    budget: Budget = scientific(
        Budget(
            steps=200,
            effective_batch_examples=256,
            learning_rate=0.004,
            not_learning=LearningGate(max_ratio=0.9, by_step=100),
        ),
        description="What each training may spend. One that is no better than letter frequencies by 10% is ended.",
    )


TEXT = Stage("letters-text", TextConfig, "letters_work:text", needs="cpu")
TRAIN = Stage("letters-train", TrainConfig, "letters_work:train", needs="training")
REPORT = Stage("letters-report", ReportConfig, "letters_work:report", needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    text = stage(TEXT, TextConfig(context_letters=study.context_letters))
    networks = {
        f"network_{number}": stage(
            TRAIN,
            TrainConfig(dropout=dropout, budget=study.budget, seed=study.seed, cell=f"dropout {dropout:g}"),
            text=text,
        )
        for number, dropout in enumerate(study.dropouts)
    }
    return stage(REPORT, ReportConfig(), text=text, **networks)


letters = study_flow(page)  # called like the file: Prefect finds it by this name
