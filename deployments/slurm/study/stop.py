"""The end of a study that a person cancels: nothing of it starts by itself, and its jobs end, but for those of stages
that another study wants too."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.diagnosis import ENDS
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.study import study as study_file
from deployments.slurm.study.study import SlurmStudy
from storage import reading
from storage.errors import BadInput


def mark_stopped(slurm: SlurmStudy) -> list[Path]:
    """Lets nothing of the study start by itself from now on; its files, none where it was never started."""
    files = _files_of(slurm)
    for file in files:
        study_file.stopped(file).touch()
    return files


def cancel_jobs(slurm: SlurmStudy, commands: SlurmCommands, files: Sequence[Path] = ()) -> int:
    """Ends the jobs of the study's stages, and those that were submitted for one of its files; says how many.

    Raises Unreachable.
    """
    known, spared = commands.jobs(), {print_[:12] for print_ in wanted_by_others(slurm)}
    own = {jobs_folder(handle.run) for handle in slurm.handles}
    journals = [Journal(folder) for folder in own | {*slurm.root.glob(f"{slurm.study.name}/*/*/jobs")}]
    entries = [
        entry
        for journal in journals
        if journal.folder.parent.name not in spared
        for entry in journal.all()
        if entry.live and (journal.folder in own or _is_for(journal.script(entry), files))
    ]
    alive = [
        entry.job_id
        for entry in entries
        if entry.job_id in known
        and (job := known[entry.job_id]).name == entry.name  # ids begin anew with a cluster's database
        and job.state not in ENDS
    ]
    commands.cancel(alive)
    return len(alive)


def _is_for(script: Path, files: Sequence[Path]) -> bool:
    """True where the script of a job names one of the study's files: of a page as it was before a stage changed."""
    try:
        text = reading.read_bytes(script).decode(errors="replace")
    except OSError:
        return False
    return any(f"--study-file={file}" in text for file in files)


def _files_of(slurm: SlurmStudy) -> list[Path]:
    """All files of the study: the present one, and those from before a stage, a package or a text changed."""
    files = [slurm.file] if slurm.file.exists() else []
    for file, page, study in study_file.readable(slurm.root, slurm.site):
        if page.place == slurm.page.place and study.name == slurm.study.name and file != slurm.file:
            with suppress(BadInput):  # its text is gone, say: nobody can tell that it is the same
                files += [file] if SlurmStudy(page, study, slurm.site, slurm.root).file == slurm.file else []
    return files


def wanted_by_others(slurm: SlurmStudy) -> set[str]:
    """Fingerprints of all stages of the studies beside this one that were started and not stopped."""
    wanted = set[str]()
    for file, page, study in study_file.readable(slurm.root, slurm.site):
        if file != slurm.file and not study_file.stopped(file).exists():
            with suppress(BadInput):  # its text is gone, say: it starts nothing
                other = SlurmStudy(page, study, slurm.site, slurm.root)
                wanted |= {handle.run.fingerprint for handle in other.handles}
    return wanted
