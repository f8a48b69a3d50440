"""One attempt at a stage: the frame around every piece of work, whatever the study.

`attempt` does the work of one process: lock, records, seeds, the work itself, verification, marker; it turns every
way of ending into one of the end states. It knows neither Prefect nor any study, and never prints.
"""

import inspect
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage import attempts, durable, generations, locks, markers
from storage.errors import BadInput, CheckFailed, Held, NoProgress, cut
from storage.inside import refuse_links
from storage.lineage import leaves
from storage.reading import UNANSWERED
from storage.run_directory import SCRATCH, RunDirectory, fingerprint, read
from tasks.stage import numerics
from tasks.stage.outcome import Outcome, in_words, outcome_of
from tasks.stage.result import Result, as_json, require_json
from tasks.stage.run import Stage, StageInput, StageRun, cache_folder
from tasks.stage.study import StageConfiguration

CAUSE_SHOWN = 300
"""Characters that are quoted of how an attempt before ended."""


def attempt(
    stage: Stage,
    config: StageConfiguration,
    run: RunDirectory,
    inputs: dict[str, StageInput],
    own_source: dict[str, str | None] | None = None,
    origin: dict[str, Any] | None = None,
) -> Outcome:
    """Does the work of `stage` in this process until it is finished, stopped or failed. Never raises for these.

    The inputs must be finished. `own_source`, of a person's own page, goes into the attempt's record. `origin` is the
    page and the whole study, for study.json. A valid marker that another process wrote in the meantime is adopted.
    """
    try:
        refuse_links(run.path, run.root, SCRATCH)
        run.path.mkdir(parents=True, exist_ok=True)
        lock = locks.acquire(run.path / "locks")
    except Held as error:
        return Outcome("held", str(error))
    except BadInput as error:
        return outcome_of(error)
    except OSError as error:
        if durable.disk_full(error, run.path) or error.errno in UNANSWERED:
            return outcome_of(error)
        return outcome_of(BadInput(f"cannot write in the run directory {run.path}: {error.strerror or error}"))
    try:
        return _attempt_with_lock(stage, config, run, inputs, own_source, origin, lock)
    finally:
        lock.release()


def _attempt_with_lock(
    stage: Stage,
    config: StageConfiguration,
    run: RunDirectory,
    inputs: dict[str, StageInput],
    own_source: dict[str, str | None] | None,
    origin: dict[str, Any] | None,
    lock: locks.Lock,
) -> Outcome:
    digests = {role: source.outputs_digest for role, source in inputs.items()}
    identity = {"fingerprint": run.fingerprint, "inputs": digests}
    work = StageRun(run, identity, lock, cache_folder(run.root, config.execution), config.scientific())
    work.execution = config.execution
    log_handler = None
    try:
        run.refresh()  # the holder before may have been on another host
        durable.remove_leftovers(run.path, SCRATCH)
        lock.remove_leftovers()
        if markers.adopt(run, digests, lock):
            return Outcome("finished")
        generations.raise_for_new_attempt(run, digests, lock)
        reached = work.reached()
        _heed_a_person(run)
        fruitless = attempts.without_progress(run.attempts, reached)
        record = work.record = attempts.AttemptRecord(
            run.attempts, lock.number, config.execution.model_dump(mode="json"), reached, own_source
        )
        log_handler = _log_to(record.log_file)
        _require_progress(fruitless)
        lock.beat = work.progress.beat
        work.stop.started = lambda seconds: work.note(start_seconds=seconds)
        with work.stop.listening():
            _open(stage, config, work, inputs, record)
            _keep_origin(run, origin, lock)
            require_verified(inputs)
            result = _work(stage, work, config, inputs)
            work.end_loops(result)
            work.stop.check_signals()
            _require_unchanged(stage, config, run, inputs)
            lock.check()
            record.free_spare()  # before the marker: after it no attempt comes that would remove the leftover
            durable.write_json(run.result_file, result | _numerics_changes(run))
            markers.write(run, sorted(set(work.outputs)), digests, lock)
        outcome = Outcome("finished")
    except BaseException as error:
        if not isinstance(error, Exception | KeyboardInterrupt | SystemExit):
            raise
        outcome = outcome_of(_lost(lock) or error)
        if work.stop.cause == "sigterm" and outcome.diagnosis and outcome.diagnosis.category == "crash":
            # it may have ended children too, such as those of a pool; what would fail without it fails again
            outcome = Outcome("sigterm", f"stopped by SIGTERM, amid which: {outcome.message}")
        if outcome.end_state in ("out_of_time", "sigterm") and work.reached() == reached:
            outcome = _in_vain(work, outcome)
        level = logging.ERROR if outcome.diagnosis else logging.INFO
        work.log.log(level, "%s: %s", in_words(outcome.end_state), outcome.text)
        if outcome.diagnosis and outcome.diagnosis.detail:
            work.log.error("%s", outcome.diagnosis.detail)
    finally:
        _end_log(log_handler)
    work.progress.beat()
    if work.record is not None:
        try:
            outcome.write_to(work.record)
        except OSError as error:
            work.log.error("the attempt record could not be written: %s", error)
    return outcome


def _keep_origin(run: RunDirectory, origin: dict[str, Any] | None, lock: locks.Lock) -> None:
    """Writes study.json, the study of this attempt, from which commands read how to make the run again."""
    if origin and origin != read(run.study_file):
        lock.check()
        durable.write_json(run.study_file, origin)


def _in_vain(work: StageRun, outcome: Outcome) -> Outcome:
    """If the attempt made no progress before its job's limit, says which limit was too short."""
    if (short := work.stop.too_short()) is None:
        return outcome
    work.note(step_seconds=work.stop.longest_seconds)
    return Outcome(outcome.end_state, f"{outcome.message}: {short.summary}", short)


def _lost(lock: locks.Lock) -> locks.LockLost | None:
    """The error of an attempt whose folder is another one's by now, or gone, whatever it failed on first."""
    try:
        lock.check()
    except locks.LockLost as error:
        return error
    except OSError:
        pass
    return None


def _require_progress(fruitless: list[attempts.AttemptRow]) -> None:
    """Raises NoProgress when this attempt was started automatically and three before it in a row gained nothing.

    It quotes as many, shortened, and none that was refused so itself: each would quote those before it, with what they
    quote.
    """
    if attempts.started_by() != "automatic" or len(fruitless) < attempts.ATTEMPTS_WITHOUT_PROGRESS:
        return
    causes = []
    worked = [record for record in fruitless if record.get("end_state") != "no_progress"]
    for record in worked[: attempts.ATTEMPTS_WITHOUT_PROGRESS]:
        cause = (record.get("diagnosis") or {}).get("summary") or record.get("end_state") or "killed: it left no end"
        causes.append(f"attempt {record['attempt']} on {record.get('host')}: {cut(cause, CAUSE_SHOWN)}")
    raise NoProgress(len(fruitless), "; ".join(causes))


def _heed_a_person(run: RunDirectory) -> None:
    """A job's script says that it was started automatically: also where a person submits it again, as one may.

    Each job that was submitted automatically has a name of its own, so another job of that name is a person's.
    """
    here = locks.process_identity()
    name, job = here["slurm_job_name"], here["slurm_job_id"]
    named = [
        record.get("slurm_job_id") for record in attempts.records(run.attempts) if record.get("slurm_job_name") == name
    ]
    if name and any(other != job for other in named):
        os.environ[attempts.STARTED_BY] = "person"


def _open(
    stage: Stage,
    config: StageConfiguration,
    work: StageRun,
    inputs: dict[str, StageInput],
    record: attempts.AttemptRecord,
) -> None:
    """Writes stage.json before any work, or compares the numerics with those of the first attempt."""
    file = work.run.stage_file
    first = _known(file, work.log)
    last = numerics.newest(first)
    current = numerics.prepare(config.numerics, config.execution, config.own_seed or 0)
    record.note(numerics=current, hardware=numerics.machine(config.numerics, config.execution))
    content = {
        "stage": stage.name,
        "study": work.run.study,
        "version": stage.version,
        "work": stage.work,
        "fingerprint": work.run.fingerprint,
        "configuration_type": f"{stage.config.__module__}:{stage.config.__name__}",
        "configuration": config.model_dump(mode="json"),
        "scientific": config.scientific(),
        "external": config.external_inputs(),
        "inputs": {
            role: {"stage": source.run.stage, "fingerprint": source.run.fingerprint} for role, source in inputs.items()
        },
        "numerics": first.get("numerics", current),
        "numerics_changes": first.get("numerics_changes", []),
    }
    # an earlier version also wrote fields on which no byte of the stage depends; one that is not compiled says nothing
    keys = {**current, "compile": ""} if config.numerics.compiles else current
    compared = {key: [last.get(key), current.get(key)] for key in keys if key != "environment" or key in last}
    if "numerics" in first and (changes := {key: both for key, both in compared.items() if both[0] != both[1]}):
        if not config.execution.allow_numerics_change:
            raise BadInput(
                f"{work.run.path} was begun with other numerics, so continuing would not give the same bytes: "
                + ", ".join(f"{key} was {was}, is {is_}" for key, (was, is_) in changes.items())
                + ". Restore them, or set execution.allow_numerics_change=true, which every table will then say"
            )
        content["numerics_changes"] = [*content["numerics_changes"], current]
    _require_unchanged(stage, config, work.run, inputs)
    if first != content:
        work.lock.check()
        durable.write_json(file, content)


def _known(file: Path, log: logging.Logger) -> dict[str, Any]:
    """The stage.json of the first attempt; empty when there was none, or when it was damaged since."""
    try:
        content = durable.read_json(file)
        if isinstance(content, dict):
            return content
        log.warning("%s does not hold an object: written anew", file)
    except FileNotFoundError:
        pass
    except ValueError as error:
        log.warning("written anew: %s", error)
    return {}


def _require_unchanged(
    stage: Stage, config: StageConfiguration, run: RunDirectory, inputs: dict[str, StageInput]
) -> None:
    """Requires, before the work and again after it, that files and packages are those of the fingerprint."""
    external, prints = config.external_inputs(), {role: source.run.fingerprint for role, source in inputs.items()}
    if fingerprint(stage.name, stage.version, config.scientific(), external, prints) == run.fingerprint:
        return
    begun = read(run.stage_file)
    read_then = {role: entry["fingerprint"] for role, entry in begun.get("inputs", {}).items()}
    then, now = (
        dict(leaves({**begun.get("external", {}), "reads": read_then})),
        dict(leaves({**external, "reads": prints})),
    )
    changed = [name for name in {**then, **now} if begun and then.get(name) != now.get(name)]
    raise BadInput(
        f"{', '.join(changed) or 'code, a file or a package'} of {stage.name} changed since it was started: with that "
        "put back as it was, the same command goes on; as it is now, the stage is another run, which begins anew"
    )


def require_verified(inputs: dict[str, StageInput]) -> None:
    """Hashes every output of what a stage reads: what rotted on a disk has kept its size and times.

    CheckFailed names the file. Each later check reads that run's bytes too, so the stage that made it counts as
    unfinished from here on, locally and on SLURM, and the next start runs it again, unless the file was put back.
    """
    for stage in inputs.values():
        verdict = markers.check_outputs(stage.run)
        if not verdict.holds or verdict.outputs_digest != stage.outputs_digest:
            markers.doubt(stage.run)
            raise CheckFailed(
                f"the outputs of {stage.run.stage} in {stage.path} verify",
                verdict.reason or "other bytes than when this stage started",
                "all digests hold",
                "Start the same command again: that stage runs again",
            )


def _work(stage: Stage, work: StageRun, config: StageConfiguration, inputs: dict[str, StageInput]) -> dict[str, Any]:
    """Calls the stage's function; returns its result as JSON values.

    Raises BadInput, with file and line, before any work for a function that does not take the page's arguments, and
    for a result that `result.json` cannot hold.
    """
    function = stage.function()
    where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}: {function.__name__}"
    try:
        inspect.signature(function).bind(work, config, **inputs)
    except TypeError as error:
        arguments = ", ".join(["run", "config", *inputs])
        raise BadInput(f"{where} of the stage {stage.name} is called with {arguments}: {error}") from None
    os.environ.setdefault("MPLCONFIGDIR", str(work.cache / "matplotlib"))  # its list of fonts: never in the home folder
    result = function(work, config, **inputs)
    if not isinstance(result, Result | dict):
        raise BadInput(f"{where} returned a {type(result).__name__}: a stage returns a dictionary, or a Result")
    content = as_json(result)
    try:
        require_json(content)
    except BadInput as error:
        raise BadInput(f"{where} returned what is no JSON: {error}") from None
    return content


def _numerics_changes(run: RunDirectory) -> dict[str, Any]:
    """The entry of the result for attempts that ran on different numerics; empty without any."""
    changes = durable.read_json(run.stage_file)["numerics_changes"]
    return {"numerics_changes": changes} if changes else {}


def _end_log(handler: logging.Handler | None) -> None:
    if handler is not None:
        logging.getLogger("ratchet").removeHandler(handler)
        with suppress(OSError):  # on a full disk its last lines are lost, the outcome is not
            handler.close()


def _log_to(file: Path) -> logging.Handler:
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ratchet")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    return handler
