"""Meaning of a SLURM state: whether a job has ended, its diagnosis, and why a job waits.

An entry for each end state and pending reason of SLURM (slurm(1): squeue, JOB STATE CODES and JOB REASON CODES). A
state that is not listed as an end means: wait.
"""

import re
from dataclasses import dataclass

from deployments.slurm.cluster.client import Job
from tasks.stage.outcome import Diagnosis

CONTINUES = "Nothing to do: the next job continues from the last checkpoint."
ELSEWHERE = "Nothing to do: the next job continues elsewhere. Inform the cluster's operators if it happens often."

ENDS: dict[str, Diagnosis] = {
    "COMPLETED": Diagnosis("info", "ended", "the job ended with exit code 0"),
    "FAILED": Diagnosis("error", "crash", "the job ended with an error", resolution="Read the end of the job's log."),
    "TIMEOUT": Diagnosis("info", "time limit", "the job met its time limit", resolution=CONTINUES),
    "DEADLINE": Diagnosis(
        "error",
        "deadline",
        "the job met the deadline that it was submitted with",
        resolution="Take --deadline out of the extra sbatch lines, then retry the run.",
    ),
    "PREEMPTED": Diagnosis("info", "preempted", "a job of higher priority took the node", resolution=CONTINUES),
    "NODE_FAIL": Diagnosis("warning", "node failure", "the job's node failed", resolution=ELSEWHERE),
    "BOOT_FAIL": Diagnosis("warning", "node failure", "the job's node did not boot", resolution=ELSEWHERE),
    "OUT_OF_MEMORY": Diagnosis(
        "error",
        "out of memory",
        "the job needed more memory than it had asked for",
        resolution="Raise memory_gb in the site file and retry the run, or lower execution.micro_batch_examples in "
        "the study and start it again.",
    ),
    "CANCELLED": Diagnosis(
        "warning",
        "cancelled",
        "the job was cancelled (scancel, or Cancel in Prefect)",
        resolution="Retry the run or start the study again: what was saved is not repeated.",
    ),
    "REVOKED": Diagnosis(
        "error",
        "revoked",
        "another cluster of the federation took the job",
        resolution="Retry the run; submit to one cluster only (site file, extra sbatch lines).",
    ),
    "LAUNCH_FAILED": Diagnosis(
        "warning", "node failure", "the job could not be launched on its node", resolution=ELSEWHERE
    ),
    "RECONFIG_FAIL": Diagnosis(
        "warning", "node failure", "the job's node could not be configured", resolution=ELSEWHERE
    ),
}
"""Every state that ends a job. Any other (RUNNING, COMPLETING, SIGNALING, REQUEUED ... or one of a newer SLURM) does
not."""

QUEUED = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
STARTED = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
ON_THE_NODE = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})


@dataclass(frozen=True)
class Advice:
    """Advice on a job that waits; nothing to do where the text is empty."""

    text: str = ""
    needs_person: bool = False
    """True where the job waits until a person does it."""


_NOTHING = Advice()
_LIMIT = Advice(
    "Wait for your other jobs, or ask for less; `sacctmgr show assoc` and `sacctmgr show qos` show the limits."
)
_NODES = Advice("`sinfo -R` shows why.")
_PARTITIONS = Advice("`sinfo` shows the partitions.")
_RELEASE = Advice("`scontrol show job JOB` shows why it is held, and `scontrol release JOB` lets it go.", True)
_OPERATORS = Advice("Ask the cluster's operators.", True)
_NEVER = Advice("It will not start by itself: cancel the run, correct the site file, and retry the run.", True)
REASONS: dict[str, tuple[str, Advice]] = {
    "Priority": ("jobs of higher priority are before it", _NOTHING),
    "Resources": ("it is the next one when enough of the cluster is free", _NOTHING),
    "Dependency": ("it waits until the job before it has ended", _NOTHING),
    "JobArrayTaskLimit": ("as many tasks of its array run as may (array_tasks, site file)", _NOTHING),
    "BeginTime": ("it may not begin yet", _NOTHING),
    "Cleaning": ("the job's last run is being cleaned up", _NOTHING),
    "Licenses": ("a licence that it asks for is taken", _NOTHING),
    "Prolog": ("the node is being prepared", _NOTHING),
    "Reservation": ("its reservation has not begun", _NOTHING),
    "NodeDown": ("a node that it needs is down", _NOTHING),
    "FrontEndDown": ("no front end node is up", _NOTHING),
    "ReqNodeNotAvail": ("the nodes that it could run on are down, drained or reserved", _NODES),
    "SchedDefer": ("the scheduler defers new starts", _NOTHING),
    "QOSGrpCpuLimit": ("the QOS has all its CPUs in use", _LIMIT),
    "QOSGrpGRES": ("the QOS has all its GPUs in use", _LIMIT),
    "QOSMaxJobsPerUserLimit": ("you run as many jobs as the QOS allows", _LIMIT),
    "QOSMaxGRESPerUser": ("you use as many GPUs as the QOS allows", _LIMIT),
    "QOSMaxCpuPerUserLimit": ("you use as many CPUs as the QOS allows", _LIMIT),
    "QOSMaxMemoryPerUser": ("you use as much memory as the QOS allows", _LIMIT),
    "QOSResourceLimit": ("a limit of the QOS is reached", _LIMIT),
    "QOSUsageThreshold": ("the QOS has used up its share", _LIMIT),
    "QOSTimeLimit": ("the QOS has used up its time", _LIMIT),
    "QOSJobLimit": ("the QOS runs as many jobs as it may", _LIMIT),
    "QOSMaxWallDurationPerJobLimit": ("the time limit is more than the QOS allows", _NEVER),
    "QOSMaxGRESPerJob": ("it asks for more GPUs than the QOS allows for one job", _NEVER),
    "QOSMaxMemoryPerJob": ("it asks for more memory than the QOS allows for one job", _NEVER),
    "QOSMaxCpuPerJobLimit": ("it asks for more CPUs than the QOS allows for one job", _NEVER),
    "QOSNotAllowed": ("the QOS is not allowed in this partition", _NEVER),
    "InvalidQOS": ("there is no such QOS for you", _NEVER),
    "InvalidAccount": ("there is no such account for you", _NEVER),
    "AccountNotAllowed": ("the account is not allowed in this partition", _NEVER),
    "AssociationJobLimit": ("your account runs as many jobs as it may", _LIMIT),
    "AssociationResourceLimit": ("your account uses as much as it may", _LIMIT),
    "AssociationTimeLimit": ("your account has used up its time", _LIMIT),
    "AssocGrpGRES": ("your group has all its GPUs in use", _LIMIT),
    "AssocGrpCpuLimit": ("your group has all its CPUs in use", _LIMIT),
    "AssocGrpMemLimit": ("your group has all its memory in use", _LIMIT),
    "AssocMaxJobsLimit": ("you run as many jobs as your account allows", _LIMIT),
    "AssocGrpBillingMinutes": ("your group has used up its budget", _LIMIT),
    "AssocGrpCPUMinutesLimit": ("your group has used up its CPU minutes", _LIMIT),
    "AssocMaxWallDurationPerJobLimit": ("the time limit is more than your account allows", _NEVER),
    "PartitionDown": ("the partition is down", _PARTITIONS),
    "PartitionInactive": ("the partition takes no jobs now", _PARTITIONS),
    "PartitionTimeLimit": ("the time limit is more than the partition allows", _NEVER),
    "PartitionNodeLimit": ("it asks for more nodes than the partition has", _NEVER),
    "PartitionConfig": ("the partition cannot give what it asks for", _NEVER),
    "BadConstraints": ("no node has what it asks for", _NEVER),
    "DependencyNeverSatisfied": ("the job that it waits for did not end as it must", _NEVER),
    "JobHeldUser": ("you hold it", _RELEASE),
    "JobHeldAdmin": ("an operator holds it", _OPERATORS),
    "JobHoldMaxRequeue": ("it was requeued too often", _NEVER),
    "JobLaunchFailure": ("it could not be launched", _OPERATORS),
    "MaxMemPerLimit": ("it asks for more memory than the partition allows", _NEVER),
    "ReservationDeleted": ("its reservation is gone", _NEVER),
    "BurstBufferResources": ("it waits for burst buffer space", _NOTHING),
    "BurstBufferStageIn": ("its burst buffer is being filled", _NOTHING),
}
"""Pending reasons: what it waits for, and what to do if it will not end by itself."""


FAMILIES: tuple[tuple[re.Pattern[str], tuple[str, Advice]], ...] = (
    (re.compile(r"held", re.I), ("it is held", _RELEASE)),
    (re.compile(r"PerJob|WallDuration|^(QOS|Assoc).*(MinC|MinG|MinM|MinN)"), ("a limit for one job is met", _NEVER)),
    (re.compile(r"^(QOS|Assoc)|Per(User|Account)"), ("a limit of the QOS or of your account is reached", _LIMIT)),
    (re.compile(r"^Nodes required for job are|NotAvail"), REASONS["ReqNodeNotAvail"]),
)
"""Common ground of the reasons that `REASONS` does not list, some hundred."""


@dataclass(frozen=True)
class Waiting:
    """Why a job waits in the queue."""

    text: str
    """In plain English, with SLURM's own reason and what to do."""
    needs_person: bool = False
    """True where it waits until a person acts."""


def waiting(reason: str) -> Waiting:
    """Meaning of a pending reason of SLURM."""
    name = reason.split(",")[0]
    known = REASONS.get(name) or next((meaning for family, meaning in FAMILIES if family.search(name)), None)
    if known is None:
        return Waiting(f"queued ({reason or 'not considered yet'})")
    cause, advice = known
    return Waiting(f"queued: {cause} ({reason})" + (f". {advice.text}" if advice.text else ""), advice.needs_person)


def accounted_end(job: Job) -> bool:
    """Tells if the accounting says how a job ended. One that the controller lost never ends there; or it is CANCELLED
    there, by nobody, when the controller started without its state: the cluster lost its queue."""
    return job.state in ENDS and (job.state != "CANCELLED" or bool(job.cancelled_by))


def of_end(job: Job) -> Diagnosis:
    """The diagnosis of a job that ended, from what SLURM alone reports."""
    known = ENDS[job.state]
    where = f"job {job.id}" + (f" on {job.node}" if job.node else "")
    resolution = known.resolution
    detail = f"{where}, {job.state}"
    if job.state == "FAILED":
        if job.signal == 53:  # slurmstepd could not open what it must
            return Diagnosis(
                "error",
                "output folder",
                "the job could not open its log or its folder",
                f"{detail} 0:53",
                "See that the folder of the run exists and is writable on the compute nodes, then retry the run.",
            )
        if job.signal:
            known = Diagnosis("error", "killed", f"the job's processes were killed by signal {job.signal}")
            resolution = CONTINUES
        elif job.exit_code:
            detail += f", exit code {job.exit_code}"
    if job.reason and job.reason not in (known.summary, "NonZeroExitCode"):
        detail += f", {job.reason}"
    return Diagnosis(known.level, known.category, known.summary, detail, resolution)
