"""Results of the stages of the poison study, beside their records, metric rows and files."""

from tasks.stage.result import Result

Measures = dict[str, float]


class FitResult(Result):
    """poison-fit, poison-remove. Snapshots: folder -> learning rate at its step."""

    snapshots: dict[str, float]
