"""A process without Prefect, in which the stages of one study work one after the other for a Prefect flow run.

What Prefect does in threads beside the work would draw from its generators, and outlive its forks. The flow run asks
for a stage by its fingerprint, a line each, and is answered with lines of JSON: what the stage logs, then its outcome.
The process ends with whoever asks it; a stage at work saves first, as after a SIGTERM.
"""

import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from types import FrameType
from typing import Any

from deployments.dag.page import Page, load_page
from deployments.dag.walk import Handle, Walk
from deployments.here.study import attempt_at
from deployments.waits import end
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.outcome import Diagnosis, Outcome, diagnosed, outcome_of
from tasks.stage.validation import validated

LOOK_SECONDS = 1.0
SAVE_SECONDS = 60.0
"""For a stage whose flow run was killed to save and end; one that heeds no signal is ended then."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a stage to stop: it works in another process than the one that people and Prefect signal."""
KILLED = "What it saved is kept, and the next try goes on from there."


class WorkProcess:
    """The process of a study, from its first stage to `close`; after its death another."""

    def __init__(self, page: Page, study: Any, walk: Walk) -> None:
        values = study.model_dump(mode="json")
        self._study = {"page": page.place, "study": values, "over": page.over, "root": str(walk.root), "path": sys.path}
        self._process: subprocess.Popen[bytes] | None = None
        self._requests, self._answers, self._unread = -1, -1, b""

    def attempt(self, handle: Handle) -> Outcome:
        """One attempt at a stage there; what it logs is logged here."""
        if self._process is None:
            self._start()
        with self._signals_forwarded():
            with suppress(BrokenPipeError):  # it is dead, as its answers will show
                os.write(self._requests, f"{handle.run.fingerprint}\n".encode())
            for line in self._lines():
                answer = json.loads(line)
                if "outcome" in answer:
                    return _read(answer["outcome"])
                logging.getLogger(answer["log"]["name"]).handle(logging.makeLogRecord(answer["log"]))
        return self._dead()

    def stop(self) -> None:
        """Asks the stage at work to save and end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends the process, which is idle."""
        if self._process is not None:
            self._close_pipes()
            end(self._process)
            self._process = None

    def _start(self) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            # -P: the folder where the study is started may hold anything
            [sys.executable, "-P", "-m", "deployments.here.process", str(requests), str(answers)],
            stdin=subprocess.DEVNULL,
            pass_fds=(requests, answers),
            process_group=0,  # Ctrl-C reaches it through us, once
        )
        os.close(requests)
        os.close(answers)
        self._unread = b""
        os.write(self._requests, json.dumps(self._study).encode() + b"\n")

    def _lines(self) -> Iterator[bytes]:
        """What it answers, line by line, until it is dead. Its own children may hold the pipe open for longer."""
        process = self._process
        assert process
        while True:
            ended = process.poll() is not None
            if select.select([self._answers], [], [], 0 if ended else LOOK_SECONDS)[0]:
                if not (part := os.read(self._answers, 1 << 16)):
                    return
                *lines, self._unread = (self._unread + part).split(b"\n")
                yield from lines
            elif ended:
                return

    def _dead(self) -> Outcome:
        assert self._process
        code = self._process.wait()
        self._close_pipes()
        self._process = None
        by = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        outcome = diagnosed("crashed", "killed", f"the process of the stage ended {by}", KILLED)
        return replace(outcome, retryable=code < 0)

    def _close_pipes(self) -> None:
        os.close(self._requests)
        os.close(self._answers)

    @contextmanager
    def _signals_forwarded(self) -> Iterator[None]:
        """The stage decides what a signal means."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def forward(number: int, _frame: FrameType | None) -> None:
            if self._process is not None:
                self._process.send_signal(number)

        heeded = [number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, forward) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _read(values: dict[str, Any]) -> Outcome:
    return Outcome(**values | {"diagnosis": Diagnosis.read(values["diagnosis"])})


class _Answers(logging.Handler):
    """Sends what is logged."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        kept = ("name", "levelno", "levelname", "created", "process", "for_the_terminal")
        sent = {key: value for key, value in vars(record).items() if key in kept}
        self.send({"log": sent | {"msg": self.format(record)}})

    def send(self, answer: dict[str, Any]) -> None:
        line = json.dumps(answer).encode() + b"\n"
        with suppress(BrokenPipeError):  # who asked was killed: the stage saves all the same
            while line:
                line = line[os.write(self._pipe, line) :]


def main(requests: int, answers: int) -> None:
    """The process: works at what it is asked for until nobody asks any more."""
    for pipe in (requests, answers):
        os.set_inheritable(pipe, False)
    log_visibly()
    handler, logger = _Answers(answers), logging.getLogger("ratchet")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    working, gone = threading.Event(), threading.Event()

    def read() -> None:
        with open(requests, "rb") as lines:
            for line in lines:
                asked.put(line)
        gone.set()
        if working.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(SAVE_SECONDS, os._exit, (1,)).start()
        asked.put(b"")

    threading.Thread(target=read, daemon=True).start()
    described = json.loads(asked.get())
    sys.path[:] = described["path"]  # what the page names is found as where the study was started
    page = replace(load_page(described["page"]), over=described["over"])
    study = validated(page.model, described["study"], "the study")
    walk = Walk(described["root"], study.name, study.execution)
    page.walk(study, walk)
    walk.close_to_others()
    while line := asked.get():
        working.set()
        if gone.is_set():
            return
        outcome = _work(page, study, walk, line.decode().strip())
        working.clear()
        handler.send({"outcome": asdict(outcome)})


def _work(page: Page, study: Any, walk: Walk, fingerprint: str) -> Outcome:
    walk.check_markers()
    if fingerprint not in {handle.run.fingerprint for handle in walk.handles}:
        page.sweep_without_stopped(study, walk)  # it may be the table of a sweep without some cells
    for handle in walk.handles:
        if handle.run.fingerprint == fingerprint:
            return attempt_at(handle)
    return outcome_of(BadInput("the study, or what it reads, changed since it was started: start it again"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
