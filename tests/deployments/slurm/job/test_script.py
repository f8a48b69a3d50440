"""The text of a job: byte for byte what a person would read, and run by bash as SLURM would run it."""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.script import CONTINUES, JobText, array_text, asked_for, sbatch_text

FULL = JobText(
    name="study-s42-train.3fa9c1.2",
    command=["/envs/ratchet/bin/python", "-m", "flows.stage", "--study-file=/runs/my study.json"],
    directory=Path("/runs/.sources/9f2c"),
    log=Path("/runs/study/train/3fa9/jobs/0002.log"),
    stop_note=Path("/runs/study/train/3fa9/jobs/0002.stop"),
    resources=Resources(
        partition="gpu",
        account="physics",
        qos="long",
        time_limit_minutes=1440,
        cpus=8,
        memory_gb=77,
        gpus=2,
        gpu_model="a100",
        constraint="a100&nvlink",
        exclude=["n7", "n9"],
        reservation="course",
        setup_lines=["module load cuda", "source /envs/ratchet/bin/activate"],
        extra_sbatch_lines=["--mem-bind=local", "--comment='two words'"],
        pass_environment=["HF_TOKEN", "WANDB_KEY"],
        lead_seconds=90.5,
    ),
    environment={"OMP_NUM_THREADS": "8", "GREETING": "it's $HOME"},
    after_jobs=["6", "7"],
    automatic=True,
    lead_seconds=150.5,
)

GOLDEN = r"""#!/bin/bash
#SBATCH --job-name=study-s42-train.3fa9c1.2
#SBATCH --comment="exit 75: saved, goes on"
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --qos=long
#SBATCH --time=1440
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=78848M
#SBATCH --gres=gpu:a100:2
#SBATCH --constraint=a100&nvlink
#SBATCH --exclude=n7,n9
#SBATCH --reservation=course
#SBATCH --output=/runs/study/train/3fa9/jobs/0002.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@151
#SBATCH --dependency=afterany:6:7
#SBATCH --export=HF_TOKEN,WANDB_KEY
#SBATCH --no-requeue
#SBATCH --mem-bind=local
#SBATCH --comment="two words"

# A stage of a Ratchet study. Standing alone it can be submitted by hand: sbatch THIS_FILE
set -u
export RATCHET_BEGAN="$(date +%s)"
export GREETING='it'"'"'s $HOME'
export OMP_NUM_THREADS=8
export RATCHET_LEAD_SECONDS=151
export RATCHET_STARTED_BY=automatic
export RATCHET_STOP_NOTE=/runs/study/train/3fa9/jobs/0002.stop
rm -f "$RATCHET_STOP_NOTE"
# USR1 comes some time before the limit: the stage finds the note, saves and stops.
trap 'touch "$RATCHET_STOP_NOTE"' USR1

# The cluster's environment; a line that fails ends the job before any work.
failed() { echo "ratchet: setup line failed ($1): $2" >&2; exit 71; }
set +u
eval 'module load cuda' || failed $? 'module load cuda'
eval 'source /envs/ratchet/bin/activate' || failed $? 'source /envs/ratchet/bin/activate'
set +e -u  # with -e the signal before the limit would end this shell, and with it the stage
# When the job must end: asked once, else computed; the stage begins to save in time.
job="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
end=$(SLURM_TIME_FORMAT=%s squeue --noheader --all --job="$job" --format=%e 2>/dev/null)
[[ $end =~ ^[0-9]+$ && $end -gt $(date +%s) ]] || end=$(($(date +%s) + 86400))
export RATCHET_DEADLINE="$end"
echo "ratchet: job $job on $SLURMD_NODENAME, $(date '+%F %T'), GPU ${CUDA_VISIBLE_DEVICES:-none}"

cd /runs/.sources/9f2c || exit 71
# As a step of the job the stage hears SIGTERM: with cgroups SLURM sends it to no child of this shell, and the one that
# begins a preemption's grace to steps alone. srun would take it for an order to kill, and gets none from here.
step="srun --ntasks=1 --cpus-per-task=${SLURM_CPUS_PER_TASK:-8} --overlap --cpu-bind=none"
step="$step --export=ALL --unbuffered"
command -v srun >/dev/null || step=""
stage=""
trap '[[ -n "$step" ]] || kill -TERM "$stage"' TERM
$step /envs/ratchet/bin/python -m flows.stage '--study-file=/runs/my study.json' &
stage=$!
while kill -0 "$stage" 2>/dev/null; do wait "$stage"; done
wait "$stage"  # again: a wait that a trap broke off gives the trap's code
exit $?
"""

HOSTILE = "a b\n$(touch expanded) `touch expanded` 'single' \"double\" \\ ; touch expanded & # $HOME *\t{x} %j é"


def test_the_text_of_a_job_is_this():
    assert sbatch_text(FULL) == GOLDEN


def test_what_is_not_asked_for_is_not_there():
    text = sbatch_text(replace(FULL, resources=Resources(), after_jobs=[], automatic=False, environment={}))
    options = [line.split("=")[0] for line in text.splitlines() if line.startswith("#SBATCH")]
    names = "job-name comment time nodes ntasks cpus-per-task mem output open-mode signal export no-requeue"
    assert options == [f"#SBATCH --{name}" for name in names.split()]
    assert "--export=NONE" in text and "failed()" not in text and "RATCHET_STARTED_BY=person" in text


def test_gpus_of_any_model():
    assert "#SBATCH --gres=gpu:3\n" in sbatch_text(replace(FULL, resources=Resources(gpus=3)))


@pytest.mark.parametrize("value", ["two\nlines", "two\rlines", "nul\0", "two\u2028lines", "two\x0blines"])
def test_a_name_that_would_begin_another_line_is_refused(value):
    with pytest.raises(ValueError, match="cannot stand on an #SBATCH line"):
        sbatch_text(replace(FULL, name=value))


@pytest.mark.parametrize("name", ["A B", "A;touch x", "1A", "", "A=B", "BASH_FUNC_x%%", "A\nB"])
def test_a_name_of_a_variable_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match="cannot be a variable"):
        sbatch_text(replace(FULL, environment={name: "x"}))


def test_a_log_is_where_it_was_said_to_be():
    """sbatch puts the job's id for %j, and drops backslashes."""
    text = sbatch_text(replace(FULL, log=Path("/runs/100%j/a b.log")))
    assert '#SBATCH --output="/runs/100%%j/a b.log"\n' in text
    with pytest.raises(ValueError, match="drops the backslash"):
        sbatch_text(replace(FULL, log=Path("/runs/a\\b.log")))


ARRAY = r"""#!/bin/bash
#SBATCH --job-name=study-train.3fa9c1.1
#SBATCH --comment="1 study train (seed 1); 2 study train (seed 2); 4 study train (seed 4); exit 75: saved, goes on"
#SBATCH --partition=gpu
#SBATCH --time=60
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=4096M
#SBATCH --output="/runs/100%%j/a b/%a.log"
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@151
#SBATCH --export=NONE
#SBATCH --no-requeue
#SBATCH --array=1,2,4%8

# Cells of a stage of a Ratchet study as one job array: each task runs a script of its own.
exec /bin/bash '/runs/100%j/a b'/"$SLURM_ARRAY_TASK_ID.sbatch"
"""


def test_the_text_of_an_array_is_this():
    job = replace(FULL, resources=Resources(partition="gpu", time_limit_minutes=60, memory_gb=4), after_jobs=[])
    jobs = {seed: replace(job, comment=f"study train (seed {seed})") for seed in (1, 2, 4)}
    assert array_text("study-train.3fa9c1.1", Path("/runs/100%j/a b"), jobs, 8) == ARRAY


def test_squeue_shows_of_each_job_study_stage_and_cell_and_a_comment_that_the_site_needs_stays(tmp_path):
    """Tasks of an array share its name: which seed 19_3 is nobody could tell."""
    plain = replace(FULL, comment="mono train (seed 3) it's", resources=Resources())
    assert '#SBATCH --comment="mono train (seed 3) it\'s; exit 75: saved, goes on"\n' in sbatch_text(plain)
    played = Played(tmp_path, "sleep 1", comment=plain.comment, resources=plain.resources)
    asked = tmp_path / "scontrol"
    asked.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/told\n')
    asked.chmod(0o755)
    assert played.run()[0] == 0 and not (tmp_path / "told").exists(), "a job of its own has it from the start"
    assert played.run(SLURM_ARRAY_JOB_ID="4", SLURM_ARRAY_TASK_ID="3")[0] == 0
    assert (tmp_path / "told").read_text().splitlines() == [
        "update",
        "jobid=4_3",
        f"comment={plain.comment}; {CONTINUES}",
    ]
    assert "scontrol" not in sbatch_text(replace(FULL, comment="mono train")), "the site's own comment is kept"


def test_a_job_that_asks_for_no_memory_has_no_mem():
    """`--mem=0` would ask for all memory of a node."""
    assert "--mem" not in sbatch_text(replace(FULL, resources=Resources(memory_gb=0)))


def test_jobs_ask_for_the_same_whatever_they_are_called_and_do():
    other = replace(FULL, name="x", log=Path("/x"), command=["y"], environment={"Z": "1"}, stop_note=Path("/n"))
    assert asked_for(other) == asked_for(FULL)
    for facts in ({"lead_seconds": 200.0}, {"after_jobs": []}, {"resources": Resources()}):
        assert asked_for(replace(FULL, **facts)) != asked_for(FULL)


# --------------------------------------------------------------------------------------------- the body, run by bash


class Played:
    """A job whose body bash runs, with stand-ins for what the cluster has."""

    def __init__(self, folder: Path, body: str = "exit 0", squeue: str = "exit 1", **facts: Any) -> None:
        self.folder = folder
        srun = 'echo "$@" > "$HOME/step"; while [[ $1 == --* ]]; do shift; done; exec "$@"'
        for name, lines in {"stage": body, "squeue": squeue, "srun": srun}.items():
            file = folder / name
            file.write_text(f"#!/bin/bash\n{lines}\n")
            file.chmod(0o755)
        given = {
            "command": [str(folder / "stage")],
            "directory": folder,
            "stop_note": folder / "stop",
            "environment": {},
        }
        self.script = folder / "job.sbatch"
        self.script.write_text(sbatch_text(replace(FULL, **({"resources": Resources()} | given | facts))))
        assert subprocess.run(["bash", "-n", self.script], check=False).returncode == 0

    def start(self, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", self.script],
            env={
                "PATH": f"{self.folder}:{os.environ['PATH']}",
                "SLURM_JOB_ID": "7",
                "SLURMD_NODENAME": "n1",
                "HOME": str(self.folder),
            }
            | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **variables: str) -> tuple[int, str]:
        process = self.start(**variables)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def wait_for(self, name: str) -> None:
        until = time.monotonic() + 300
        while not (self.folder / name).exists():
            assert time.monotonic() < until, f"no {name}"
            time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 1, 2, 70, 75, 130])
def test_the_job_ends_with_the_stages_exit_code(tmp_path, code):
    ended, output = Played(tmp_path, f"exit {code}").run()
    assert ended == code and "ratchet: job 7 on" in output and "GPU none" in output


def test_a_task_of_an_array_runs_its_own_script_and_asks_for_its_own_end(tmp_path):
    folder = tmp_path / "an array"
    folder.mkdir()
    played = Played(
        tmp_path, 'printf %s "$RATCHET_DEADLINE" > deadline; exit 75', '[ "$3" = --job=4_3 ] && echo 4000000000'
    )
    (folder / "3.sbatch").symlink_to(played.script)
    played.script = tmp_path / "array.sbatch"
    played.script.write_text(array_text("array", folder, {1: FULL, 3: FULL}, 2))
    code, output = played.run(SLURM_ARRAY_JOB_ID="4", SLURM_ARRAY_TASK_ID="3")
    assert code == 75 and "ratchet: job 4_3 on" in output, output
    assert (tmp_path / "deadline").read_text() == "4000000000"


def test_a_stage_that_is_killed_ends_the_job_with_the_signals_code(tmp_path):
    assert Played(tmp_path, "kill -9 $$").run()[0] == 128 + 9


def test_hostile_values_reach_the_stage_as_they_are(tmp_path):
    place = tmp_path / HOSTILE.replace("\n", " ").replace("/", "")
    place.mkdir()
    note = place / "stop"
    note.write_text("left by an earlier job")
    played = Played(
        tmp_path,
        'printf "%s\\0" "$PWD" "$GREETING" "$RATCHET_STOP_NOTE" "$@" > "$HOME/given"',
        command=[str(tmp_path / "stage"), HOSTILE, "", "--root=" + HOSTILE],
        directory=place,
        stop_note=note,
        environment={"GREETING": HOSTILE},
        name="a b $(touch expanded) `touch expanded`",
    )
    code, output = played.run()
    assert code == 0, output
    given = (tmp_path / "given").read_text().split("\0")[:-1]
    assert given == [str(place), HOSTILE, str(note), HOSTILE, "", "--root=" + HOSTILE]
    assert not note.exists(), "the note of an earlier job stops no new one"
    assert not list(tmp_path.rglob("expanded"))


@pytest.mark.parametrize("setup_lines", [[], ["set -euo pipefail"]])
def test_usr1_leaves_the_note_and_the_stages_code_is_kept(tmp_path, setup_lines):
    body = "touch begun; while [ ! -e stop ]; do sleep 0.02; done; sleep 0.1; exit 75"
    played = Played(tmp_path, body, resources=Resources(setup_lines=setup_lines))
    process = played.start()
    played.wait_for("begun")
    assert not (tmp_path / "stop").exists()
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    assert (tmp_path / "stop").exists()


def test_usr1_during_the_setup_is_not_the_end(tmp_path):
    lines = ["touch begun; sleep 0.3"]
    played = Played(tmp_path, "[ -e stop ] && exit 75", resources=Resources(setup_lines=[f"cd {tmp_path}", *lines]))
    process = played.start()
    played.wait_for("begun")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=300)
    assert process.returncode == 75, "the stage finds the note when it begins"


@pytest.mark.parametrize("step", [True, False])
def test_a_stage_hears_a_term_once_from_slurm_as_a_step_and_from_the_shell_where_there_is_no_srun(tmp_path, step):
    """The shell waits for the stage to save, and its code is the job's."""
    body = "trap 'echo >> heard; touch saving' TERM; touch begun; while [ ! -e saved ]; do sleep 0.02; done; exit 75"
    played = Played(tmp_path, body)
    if not step:
        (tmp_path / "srun").unlink()
        for name in ("bash", "date", "rm", "sleep", "touch"):  # a machine without SLURM
            (tmp_path / name).symlink_to(str(shutil.which(name)))
    process = played.start(**({} if step else {"PATH": str(tmp_path)}))
    try:
        played.wait_for("begun")
        (child,) = (int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(process.pid, signal.SIGTERM)
        if step:
            os.kill(child, signal.SIGTERM)
            assert "--ntasks=1 --cpus-per-task=1 " in (tmp_path / "step").read_text()
        played.wait_for("saving")
    finally:
        (tmp_path / "saved").touch()
        process.communicate(timeout=300)
    assert process.returncode == 75 and (tmp_path / "heard").read_text() == "\n"


@pytest.mark.parametrize(
    "line", ["false", "(exit 9)", "source /no/such/file", "no-such-command", 'echo "unbalanced', "module load \\"]
)
def test_a_setup_line_that_fails_ends_the_job_before_any_work_and_is_named(tmp_path, line):
    played = Played(tmp_path, "touch began", resources=Resources(setup_lines=["true", line, "touch later"]))
    code, output = played.run()
    assert code == 71 and "ratchet: setup line failed (" in output and f"): {line}\n" in output
    assert not (tmp_path / "began").exists() and not (tmp_path / "later").exists()


def test_setup_lines_change_the_shell_that_runs_the_stage(tmp_path):
    lines = ["export FROM_SETUP='a  b'", "cd /", "unset NOT_SET; echo $NOT_SET", "shout() { echo $1; }; shout hello"]
    played = Played(tmp_path, 'printf %s "$FROM_SETUP" > got', resources=Resources(setup_lines=lines))
    code, output = played.run()
    assert code == 0 and "hello" in output
    assert (tmp_path / "got").read_text() == "a  b", "and the stage begins in its own folder all the same"


def test_a_folder_that_is_not_there_ends_the_job_before_any_work(tmp_path):
    code, output = Played(tmp_path, directory=tmp_path / "gone").run()
    assert code == 71 and "gone" in output


@pytest.mark.parametrize(
    ("squeue", "known"),
    [
        ('[ "$SLURM_TIME_FORMAT" = %s ] && echo 4000000000', True),
        ("echo 1000000000", False),
        ("echo 2099-11-21T20:00:00", False),
        ("exit 1", False),
        ("echo", False),
        ("echo N/A", False),
        ("echo Unknown; exit 0", False),
    ],
)
def test_the_deadline_is_what_slurm_says_or_else_the_limit_from_now(tmp_path, squeue, known):
    before = time.time()
    played = Played(
        tmp_path, 'printf %s "$RATCHET_DEADLINE" > deadline', squeue, resources=Resources(time_limit_minutes=7)
    )
    assert played.run()[0] == 0
    deadline = float((tmp_path / "deadline").read_text())
    if known:
        assert deadline == 4e9
    else:
        assert before + 7 * 60 - 1 <= deadline <= time.time() + 7 * 60
