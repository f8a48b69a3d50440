"""Edits of a finished study that contradict themselves, every marker sealed again: each is refused by name."""

from pathlib import Path

from tests.tasks.inversion.tiny import finished
from tests.tasks.resealed import Change, Edit, Stages, configured_otherwise, nothing, unchanged


def pilot_failed(stages: Stages) -> None:
    for row in stages["pilot"]["metrics"]:
        row |= {"validation_mse": 99.0} if "validation_mse" in row else {}


def other_descents(stages: Stages) -> None:
    for stage in stages.values():
        for fields in (stage["described"]["configuration"], stage["described"]["scientific"]):
            if "mining" in fields:
                fields["mining"]["descent"] = "corrected"


def one_training_twice(stages: Stages) -> None:
    stages["none-1"] |= {"rows": stages["none-0"]["rows"], "metrics": stages["none-0"]["metrics"]}


def better_than_zero(stages: Stages) -> None:
    """Seen: a scale by the recorded number, below 0, let every value pass, and the study said Yes."""
    for role in ("adversarial-0", "adversarial-1"):
        for row in stages[role]["rows"]:
            row["mse"] = -1.0
        for row in stages[role]["metrics"]:
            row |= {"validation_mse": -1.0} if "validation_mse" in row else {}


def no_rates(stages: Stages) -> None:
    for row in stages["none-0"]["metrics"]:
        row.pop("learning_rate", None)


def one_validation(stages: Stages) -> None:
    stages["none-0"]["metrics"] = [row for row in stages["none-0"]["metrics"] if row.get("step") != 50]


def seed_counted_twice(stages: Stages) -> None:
    """One training stands for two seeds, its errors a little moved."""
    rows = [row | {"mse": 1.003 * row["mse"]} for row in stages["none-0"]["rows"]]
    metrics = [
        row | {"validation_mse": 1.003 * row["validation_mse"]} if "validation_mse" in row else row
        for row in stages["none-0"]["metrics"]
    ]
    stages["none-1"] |= {"rows": rows, "metrics": metrics}


def its_weights_too(role: str, path: Path) -> None:
    if role == "none-1":
        source = finished().path("inversion-train (none, seed 0)") / "model" / "model.safetensors"
        (path / "model" / "model.safetensors").write_bytes(source.read_bytes())


REFUSED: list[tuple[str, Edit, Change, str]] = [
    ("audit", better_than_zero, unchanged, "the error of adversarial-0 on matrix"),
    ("report", pilot_failed, unchanged, "error of the pilot, which must learn: measured 99, required at most"),
    ("report", other_descents, unchanged, "is the one that the stage was given: measured fingerprint"),
    ("report", nothing, configured_otherwise, "is the one that the stage was given: measured fingerprint"),
    ("report", no_rates, unchanged, "the last step of none, seed 0 has a learning rate in"),
    ("report", one_validation, unchanged, "the validations of none, seed 0 in"),
    ("report", seed_counted_twice, its_weights_too, "weights of the trainings: measured those of none, seed 0"),
    ("report", one_training_twice, unchanged, "every cell has a number of its own: measured none, seed 0 and none"),
]
