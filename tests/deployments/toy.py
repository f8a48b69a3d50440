"""A study of nothing: stages that end in every way, to see what each end becomes."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from storage import external
from storage.errors import BadInput, CheckFailed, NoProgress, NotLearning, NumericalFailure, Stop
from tasks.stage.configuration import Configuration, execution, scientific
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration, StudyBase


class ToyConfig(StageConfiguration):
    """How the stage ends."""

    ends: str = scientific(description="the way in which the stage ends")
    number: int = scientific(0, description="tells it from another stage")
    reads: list[str] = execution([], description="files that it reads")
    fails_until: int = execution(0, description="attempts that lose their connection before one works")

    def external_inputs(self) -> dict[str, Any]:
        return {"files": external.file_manifest(self.reads)} if self.reads else {}


def work(run: StageRun, config: ToyConfig, **inputs: StageInput) -> dict[str, Any]:
    with run.publish_file("done.txt") as file:
        file.write_text(config.ends)
    if config.ends == "lost-connection" and run.lock.number <= config.fails_until:
        raise ConnectionError("the hub does not answer")
    if config.ends == "killed" and run.lock.number <= config.fails_until:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.ends == "asked-to-stop":
        os.kill(os.getppid(), signal.SIGINT)
        while True:
            run.stop.check()
            time.sleep(0.01)
    if config.ends == "without-prefect" and "prefect" in sys.modules:
        raise CheckFailed("Prefect in the process of the work", "imported", "not imported")
    if config.ends == "reads-a-file-that-changes":
        Path(config.reads[0]).write_text("other text")
    if config.ends == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
        run.stop.check()
    errors: dict[str, Exception] = {
        "out_of_time": Stop("out_of_time", "its share is done"),
        "interrupted": Stop("interrupted", "Ctrl-C"),
        "check_failed": CheckFailed("weights moved", 0, "more than 0"),
        "numerical_failure": NumericalFailure(7, [1, 2], "the loss"),
        "not_learning": NotLearning(7, "angle", 1.5, 1.4, "0.9 x 1.57 of a constant direction", [(7, 1.5)]),
        "no_progress": NoProgress(3, "killed three times"),
        "bad_input": BadInput("the file is empty"),
        "crashed": RuntimeError("a bug"),
    }
    if config.ends in errors:
        raise errors[config.ends]
    return {"ends": config.ends, "number": config.number}


class Call(Configuration):
    """A stage call."""

    name: str = scientific(description="the stage")
    config: ToyConfig = scientific(description="its configuration")
    reads: list[str] = scientific([], description="names of the stages that it reads")


class Study(StudyBase):
    calls: list[Call] = scientific([], description="in page order")


def call(name: str, ends: str = "finished", *reads: str, **config: Any) -> Call:
    return Call(name=name, config=ToyConfig(ends=ends, **config), reads=[*reads])


def toy_stage(name: str) -> Stage:
    return Stage(name, ToyConfig, "tests.deployments.toy:work")


def page(study: Study, stage: Dispatcher) -> Handle:
    handles: dict[str, Handle] = {}
    for each in study.calls:
        read = {name.replace("-", "_"): handles[name] for name in each.reads}
        handles[each.name] = stage(toy_stage(each.name), each.config, **read)
    return handles[study.calls[-1].name]


toy = study_flow(page)
