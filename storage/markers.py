"""The completion marker `COMPLETE.json`: written last, once, after verification; trusted only while it holds.

A marker holds while its fingerprint is its run's own, the digests of its outputs hold, each input digest it lists
equals the one in that input's present marker, and no later attempt has taken the run over. A file that was touched,
copied or edited is no marker, and every refusal has a reason.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage import durable, locks
from storage.errors import BadInput
from storage.inside import Outside, inside, parts
from storage.run_directory import RunDirectory, read

FORMAT = 1
GLANCED_BYTES = 1_000_000
"""A list of runs reads no output that is larger: results and reports are smaller, weights are not."""


@dataclass(frozen=True)
class Verdict:
    """The check of a marker. `reason` is empty only when it holds; `present` is False where there is none."""

    holds: bool
    reason: str = ""
    present: bool = True
    outputs_digest: str = ""


def write(run: RunDirectory, outputs: list[str], inputs: dict[str, str], lock: locks.Lock) -> Verdict:
    """Reads every output back, digests it, and then commits the marker.

    `outputs` are names of files or folders relative to the run directory; `inputs` the outputs digests of the stages
    that were really read, by role. Raises FileNotFoundError naming an output that is missing, BadInput naming one
    that is no file inside the run directory, such as a link.
    """
    described = {name: _describe(inside(run.path, name)) for name in _files(run.path, outputs)}
    body = {
        "format": FORMAT,
        "stage": run.stage,
        "fingerprint": run.fingerprint,
        "lock": lock.number,
        "outputs": described,
        "outputs_digest": outputs_digest(described),
        "inputs": dict(sorted(inputs.items())),
    }
    lock.check()
    durable.write_json(run.marker_file, body | {"marker_digest": durable.sha256_json(body)})
    verdict = check(run, inputs, full=True)
    if not verdict.holds:
        lock.check()  # or this would remove the marker of whoever took over while we read
        run.marker_file.unlink(missing_ok=True)
        raise OSError(f"{run.path}: what was written did not read back: {verdict.reason}")
    return verdict


def check(
    run: RunDirectory, inputs: dict[str, str] | None, full: bool | None = False, any_lock: bool = False
) -> Verdict:
    """Checks the run's marker.

    `inputs` are the outputs digests in the present markers of the stages it reads, by role (None: any). Sizes, times
    and inodes are compared first and the bytes only where these differ; `full` always hashes the bytes, None only
    those of small outputs that differ. `any_lock` accepts the marker of an attempt that was taken over.
    """
    try:
        marker = durable.read_json(inside(run.path, run.marker_file.name))
    except FileNotFoundError:
        return Verdict(False, "no marker", present=False)
    except (OSError, ValueError) as error:
        return Verdict(False, f"the marker cannot be read: {error}")
    try:
        reason = (
            _wrong_identity(marker, run)
            or (_wrong_inputs(marker, inputs) if inputs is not None else "")
            or _wrong_outputs(marker["outputs"], run.path, full)
            or (_taken_over(marker, run) if not any_lock else "")
        )
    except Outside as error:
        reason = f"the marker lists what is no output: {error}"
    except (OSError, ValueError, TypeError, AttributeError) as error:  # a person's edit can put anything there
        reason = f"the marker cannot be verified: {error!r}"
    return Verdict(False, reason) if reason else Verdict(True, outputs_digest=marker["outputs_digest"])


def check_outputs(run: RunDirectory, full: bool = True) -> Verdict:
    """Checks that the run's marker is its own and every byte of every output holds, whatever its inputs are now."""
    return check(run, None, full)


def glance(run: RunDirectory) -> Verdict:
    """Checks, for a list of runs, that the run's marker is its own and every output has its size.

    A small output (GLANCED_BYTES) is read where its times are not those at the end of the stage.
    """
    return check(run, None, full=None)


def output(run: RunDirectory, name: object) -> Path:
    """The path of an output that a result names; BadInput where the run's marker lists none of this name."""
    path = inside(run.path, name)
    if path.relative_to(run.path).as_posix() not in read(run.marker_file).get("outputs", {}):
        raise BadInput(f"{name} is no output that the marker of {run.path} lists")
    return path


def digest(run: RunDirectory, name: str) -> str:
    """The sha256 of an output, as the marker of a verified run lists it."""
    return str(durable.read_json(run.marker_file)["outputs"][name]["sha256"])


def doubt(run: RunDirectory) -> None:
    """Has each later check of the run read the bytes of its outputs, whose times are others from now on."""
    for name in read(run.marker_file).get("outputs", {}):
        with suppress(OSError, BadInput):  # another person's, or gone
            os.utime(inside(run.path, name))


def adopt(run: RunDirectory, inputs: dict[str, str], lock: locks.Lock) -> bool:
    """Commits again, under the new `lock`, a marker that another attempt wrote just before the lock was taken.

    Returns False, and commits nothing, when a byte does not hold or when there is no marker.
    """
    if not check(run, inputs, full=True, any_lock=True).holds:
        return False
    write(run, list(durable.read_json(run.marker_file)["outputs"]), inputs, lock)
    return True


def outputs_digest(outputs: dict[str, Any]) -> str:
    """The digest of all that dependents read: names and contents, never times or inodes.

    stage.json is in the marker but not in this digest: it also says how the work was done (threads, limits, places),
    which may differ between two attempts with the same bytes.
    """
    return durable.sha256_json({name: entry.get("sha256") for name, entry in outputs.items() if name != "stage.json"})


def _wrong_identity(marker: Any, run: RunDirectory) -> str:
    """The reason why this is not the marker of this run; empty if it is."""
    if not isinstance(marker, dict) or not isinstance(marker.get("outputs"), dict) or not marker["outputs"]:
        return "the marker lists no outputs"
    body = {key: value for key, value in marker.items() if key != "marker_digest"}
    if marker.get("marker_digest") != durable.sha256_json(body):
        return "the marker was edited after it was written"
    if marker.get("outputs_digest") != outputs_digest(marker["outputs"]):
        return "the marker's outputs digest is not that of the outputs it lists"
    if marker.get("format") != FORMAT:
        return f"the marker has format {marker.get('format')!r}, not {FORMAT}"
    if marker.get("stage") != run.stage:
        return f"the marker was copied from stage {marker.get('stage')!r}"
    if marker.get("fingerprint") != run.fingerprint:
        return f"the marker belongs to fingerprint {str(marker.get('fingerprint'))[:12]}, not to this run"
    return ""


def _taken_over(marker: dict[str, Any], run: RunDirectory) -> str:
    """The later attempt that took the run over; empty if none. Checked last, so that it learns what else is wrong."""
    if marker.get("lock") != (present := locks.highest(run.path / "locks")):
        return f"the marker was written by attempt {marker.get('lock')}, but attempt {present} took the run over"
    return ""


def _wrong_inputs(marker: dict[str, Any], inputs: dict[str, str]) -> str:
    """The input that differs from the one the stage read; empty if none."""
    recorded = marker.get("inputs")
    if not isinstance(recorded, dict) or sorted(recorded) != sorted(inputs):
        return f"the marker lists the inputs {sorted(recorded or {})}, the stage reads {sorted(inputs)}"
    for role, digest in inputs.items():
        if recorded[role] != digest:
            return f"the input {role!r} is not the one that was read: its outputs have changed since"
    return ""


def _wrong_outputs(outputs: dict[str, Any], directory: Path, full: bool | None) -> str:
    """The output that is missing, altered, or extra in an output folder; empty if none.

    Raises BadInput where one is no file inside the run directory.
    """
    for name, entry in outputs.items():
        try:
            file = inside(directory, name)
            stat = file.stat()
            if stat.st_size != entry["size"]:
                return f"{name} has {stat.st_size} bytes, the marker says {entry['size']}"
            untouched = [stat.st_mtime_ns, stat.st_ino] == [entry["mtime_ns"], entry["inode"]]
            read = full or (not untouched and (full is False or stat.st_size <= GLANCED_BYTES))
            if read and durable.sha256_file(file) != entry["sha256"]:
                return f"{name} was edited after the stage finished: its digest differs"
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, KeyError, TypeError) as error:
            return f"{name} cannot be verified: {error!r}"
    folders = {folder for folder, *below in map(parts, outputs) if below}
    if extra := set(_files(directory, sorted(folders), missing_ok=True)) - set(outputs):
        return f"{sorted(extra)[0]} was added after the stage finished"
    return ""


def _describe(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {
        "sha256": durable.sha256_file(file),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "inode": stat.st_ino,
    }


def _files(directory: Path, names: list[str], missing_ok: bool = False) -> list[str]:
    """The files at and below `names` in `directory`, sorted."""
    files = []
    for name in names:
        path = directory.joinpath(*parts(name))
        if path.is_dir() and not path.is_symlink():
            inner = (file for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
            files += [file.relative_to(directory).as_posix() for file in inner]
        elif os.path.lexists(path):
            files.append(name)
        elif not missing_ok:
            raise FileNotFoundError(f"the stage named the output {path}, which is not there")
    return sorted(files)
