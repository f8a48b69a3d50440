"""A study of milliseconds with all that a person looks for: a report, a table, numbers, a headline, a log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from deployments.dag.walk import Dispatcher, Handle, Walk
from deployments.study_flow import study_flow
from storage.errors import CheckFailed
from tasks.findings.publish import publish
from tasks.stage.attempt import attempt
from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.result import Result
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration, StudyBase


class CountConfig(StageConfiguration):
    """count: counts."""

    numerics: ClassVar = Numerics(torch=False)

    words: int = scientific(description="Words that are counted.")
    fails: bool = execution(False, description="Whether a check fails.")


class AnswerConfig(StageConfiguration):
    """answer: says what was counted."""

    numerics: ClassVar = Numerics(torch=False)

    seed: int = scientific(description="Seed of the study.")
    level: float = scientific(description="Confidence level.")


class Study(StudyBase):
    """A study of two stages."""

    words: int = scientific(10, description="Words that are counted.")
    level: float = scientific(0.95, description="Confidence level.")
    fails: bool = execution(False, description="Whether a check fails.")


COUNT = Stage("count", CountConfig, "tests.flows.answers:count", needs="cpu")
ANSWER = Stage("answer", AnswerConfig, "tests.flows.answers:answer", needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    counted = stage(COUNT, CountConfig(words=study.words, fails=study.fails))
    return stage(ANSWER, AnswerConfig(seed=study.seed, level=study.level), counted=counted)


answers = study_flow(page)


def count(run: StageRun, config: CountConfig) -> dict[str, Any]:
    for number in range(12):
        run.log.info("counts line %d", number)
    if config.fails:
        raise CheckFailed("the words are there", 0, config.words, "Look at the text")
    return {"words": config.words}


def answer(run: StageRun, config: AnswerConfig, counted: StageInput) -> Result:
    words = counted.result["words"]
    numbers = {
        "answer": "many" if words > 10 else "few",
        "loss": words / 3,
        "of": {f"part-{number}": number * config.level for number in range(40)},
        "curve": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": config.level}],
        "runs": {"count": str(counted.path)},
        "digest": counted.run.fingerprint,
    }
    texts = {"table.md": f"| {words} |\n", "report.html": "<!doctype html><title>report</title>"}
    return publish(run, numbers, texts, headline=f"{words} words & more")


def finished(root: Path, study: Study, page: Callable[..., Handle] = page) -> list[Handle]:
    """The stage calls of the page, each run in this process without Prefect as far as it goes."""

    class Here(Walk):
        def __call__(self, stage: Stage, config: StageConfiguration, **inputs: Handle) -> Handle:
            handle = super().__call__(stage, config, **inputs)
            if not handle.finished and not handle.waits_for:
                given = {role: source.as_input() for role, source in inputs.items()}
                handle.outcome = attempt(stage, config, handle.run, given)
                handle.check_marker()
            return handle

    walk = Here(root, study.name, study.execution)
    page(study, walk)
    return walk.handles


SMALL = """
from deployments.study_flow import study_flow
from deployments.dag.walk import Dispatcher, Handle
from tests.flows.answers import COUNT, CountConfig, Study


def page(study: Study, stage: Dispatcher) -> Handle:
    return stage(COUNT, CountConfig(words=study.words))


small = study_flow(page)
"""
"""The page of a study of one's own, whose file is small.py."""
