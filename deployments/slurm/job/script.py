"""The text of a job: a pure function of typed values. A person can read it, and run it by hand with sbatch."""

import math
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deployments.slurm.cluster.site import Resources
from tasks.stage import outcome

# Exit codes of a job that left no record of its end; otherwise it has the attempt's (`tasks.stage.outcome`).
BAD_INPUT = outcome.BAD_INPUT.exit_code
"""The study file, or what the stage reads, is not what it should be."""
ENDED_BEFORE = 70
"""An error of ours, before the attempt began."""
SETUP_FAILED = 71
"""A setup line of the site failed."""
DISK_FULL = 73
"""There was no room to write, perhaps not even the record that says so."""
HELD = 72
"""Another process works in the run directory."""

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
COMMENT_LENGTH = 1000
PLAIN = re.compile(r"[A-Za-z0-9_.,:@%+/=&|()\[\]*!-]*")


CONTINUES = "exit 75: saved, goes on"
"""Ends the comment of each job: SLURM's own word for that end is FAILED."""


@dataclass(frozen=True)
class JobText:
    """Everything that the text of a job is made of."""

    name: str
    """Unique: the job is found by it."""
    command: list[str]
    """Argument vector; runs in `directory`."""
    directory: Path
    """The source snapshot."""
    log: Path
    stop_note: Path
    resources: Resources
    environment: dict[str, str] = field(default_factory=dict)
    after_jobs: list[str] = field(default_factory=list)
    """The jobs before this one of the same stage: they must have ended, however."""
    automatic: bool = True
    lead_seconds: float = 90.0
    comment: str = ""
    """Description in words: `squeue -o '%i %k'` shows it, of a task of an array once that runs."""


def sbatch_text(job: JobText) -> str:
    """The script that is submitted, byte for byte what the dry run prints. ValueError for what no script can hold."""
    lines = _head(_options(job, _log_file(job.log)))
    lines += [
        "# A stage of a Ratchet study. Standing alone it can be submitted by hand: sbatch THIS_FILE",
        "set -u",
        'export RATCHET_BEGAN="$(date +%s)"',
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(_environment(job).items())),
        'rm -f "$RATCHET_STOP_NOTE"',
        "# USR1 comes some time before the limit: the stage finds the note, saves and stops.",
        "trap 'touch \"$RATCHET_STOP_NOTE\"' USR1",
        "",
    ]
    if job.comment and not any(line.startswith("--comment") for line in job.resources.extra_sbatch_lines):
        comment = f"comment={shlex.quote(_comment(job))} >/dev/null 2>&1 &"
        lines += [
            "# Of a job array SLURM knows one comment; this is the task's. The last task's own id means all of them.",
            '[[ -z "${SLURM_ARRAY_TASK_ID:-}" ]] || '
            f'scontrol update jobid="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" {comment}',
            "",
        ]
    if job.resources.setup_lines:
        lines += [
            "# The cluster's environment; a line that fails ends the job before any work.",
            f'failed() {{ echo "ratchet: setup line failed ($1): $2" >&2; exit {SETUP_FAILED}; }}',
            "set +u",
        ]
        for line in map(shlex.quote, job.resources.setup_lines):
            lines += [f"eval {line} || failed $? {line}"]  # one that is no shell at all fails alone, and by name
        lines += ["set +e -u  # with -e the signal before the limit would end this shell, and with it the stage", ""]
    return "\n".join(lines) + _BODY.format(
        seconds=60 * job.resources.time_limit_minutes,
        directory=shlex.quote(str(job.directory)),
        setup_failed=SETUP_FAILED,
        cpus=job.resources.cpus,
        command=shlex.join(job.command),
    )


def asked_for(job: JobText) -> tuple[str, ...]:
    """All that the job asks SLURM for: the tasks of one array ask for the same."""
    return tuple(_options(replace(job, name="", comment=""), ""))


def request_text(resources: Resources) -> str:
    """A script that asks SLURM for these resources and does nothing: what `sbatch --test-only` is asked about."""
    nowhere = Path()
    job = JobText("", [], nowhere, nowhere, nowhere, resources, lead_seconds=resources.lead_seconds)
    return "\n".join(_head(_options(job, "")))


def array_text(name: str, folder: Path, tasks: Mapping[int, JobText], at_once: int) -> str:
    """The script of an array of jobs that ask for the same, by number; `at_once` of them run at a time.

    Task 3 runs `3.sbatch` of the folder, which is the script of a job, and writes to `3.log` there.
    """
    comment = "; ".join(f"{task} {job.comment}" for task, job in tasks.items())
    comment = textwrap.shorten(comment, COMMENT_LENGTH, placeholder=" ...")
    options = _options(replace(next(iter(tasks.values())), name=name, comment=comment), f"{_log_file(folder)}/%a.log")
    options.append(f"--array={','.join(map(str, tasks))}%{at_once}")
    lines = [
        *_head(options),
        "# Cells of a stage of a Ratchet study as one job array: each task runs a script of its own.",
        f'exec /bin/bash {shlex.quote(str(folder))}/"$SLURM_ARRAY_TASK_ID.sbatch"',
        "",
    ]
    return "\n".join(lines)


def _head(options: Sequence[str]) -> list[str]:
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), ""]


_BODY = """\
# When the job must end: asked once, else computed; the stage begins to save in time.
job="${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}"
end=$(SLURM_TIME_FORMAT=%s squeue --noheader --all --job="$job" --format=%e 2>/dev/null)
[[ $end =~ ^[0-9]+$ && $end -gt $(date +%s) ]] || end=$(($(date +%s) + {seconds}))
export RATCHET_DEADLINE="$end"
echo "ratchet: job $job on $SLURMD_NODENAME, $(date '+%F %T'), GPU ${{CUDA_VISIBLE_DEVICES:-none}}"

cd {directory} || exit {setup_failed}
# As a step of the job the stage hears SIGTERM: with cgroups SLURM sends it to no child of this shell, and the one that
# begins a preemption's grace to steps alone. srun would take it for an order to kill, and gets none from here.
step="srun --ntasks=1 --cpus-per-task=${{SLURM_CPUS_PER_TASK:-{cpus}}} --overlap --cpu-bind=none"
step="$step --export=ALL --unbuffered"
command -v srun >/dev/null || step=""
stage=""
trap '[[ -n "$step" ]] || kill -TERM "$stage"' TERM
$step {command} &
stage=$!
while kill -0 "$stage" 2>/dev/null; do wait "$stage"; done
wait "$stage"  # again: a wait that a trap broke off gives the trap's code
exit $?
"""


def _options(job: JobText, output: str) -> list[str]:
    """The sbatch options; one without a value is left out. A value is one word, or quoted as sbatch reads it."""
    asked = job.resources
    gpus = f"gpu:{asked.gpu_model}:{asked.gpus}" if asked.gpu_model else f"gpu:{asked.gpus}"
    lead = math.ceil(job.lead_seconds)
    options = {
        "job-name": job.name,
        "comment": _comment(job),
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "time": str(asked.time_limit_minutes),
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(asked.cpus),
        "mem": f"{math.ceil(asked.memory_gb * 1024)}M" if asked.memory_gb else "",
        "gres": gpus if asked.gpus else "",
        "constraint": asked.constraint,
        "exclude": ",".join(asked.exclude),
        "reservation": asked.reservation,
        "output": output,
        "open-mode": "append",
        "signal": f"B:USR1@{lead}",
        "dependency": ":".join(["afterany", *job.after_jobs]) if job.after_jobs else "",
        "export": ",".join(asked.pass_environment) or "NONE",
    }
    written = [f"--{name}={_quoted(value)}" for name, value in options.items() if value]
    return [*written, "--no-requeue", *(_extra(line) for line in asked.extra_sbatch_lines)]


def _comment(job: JobText) -> str:
    return "; ".join(filter(None, [job.comment, CONTINUES]))


def _extra(line: str) -> str:
    name, is_, value = shlex.split(line)[0].partition("=")
    return name + is_ + _quoted(value)


def _log_file(log: Path) -> str:
    """sbatch fills in what stands after a percent sign, and drops backslashes."""
    if "\\" in str(log):
        raise ValueError(f"{str(log)!r} cannot be the log of a job: SLURM drops the backslash")
    return str(log).replace("%", "%%")


def _environment(job: JobText) -> dict[str, str]:
    for name, value in job.environment.items():
        if not VARIABLE.fullmatch(name) or "\0" in value:
            raise ValueError(f"{name!r} cannot be a variable of the environment, or has a value that cannot be")
    return job.environment | {
        "RATCHET_LEAD_SECONDS": str(math.ceil(job.lead_seconds)),
        "RATCHET_STARTED_BY": "automatic" if job.automatic else "person",
        "RATCHET_STOP_NOTE": str(job.stop_note),
    }


def _quoted(value: str) -> str:
    """A value on an #SBATCH line: sbatch knows double quotes and the backslash, and nothing is expanded."""
    if len(value.splitlines()) > 1 or set(value) & set("\n\r\0"):
        raise ValueError(f"{value!r} cannot stand on an #SBATCH line")
    if PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
