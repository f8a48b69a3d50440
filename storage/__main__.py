"""Looks after the run directories of a root, without knowing any study.

python -m storage verify ROOT            hash every output of every finished stage; exit 1 when one does not hold
python -m storage prune ROOT [--yes]     remove what finished stages no longer need: checkpoints, record parts
python -m storage export ROOT FOLDER     copy results (no weights, text, checkpoints) with a manifest of digests

Each takes `--study NAME`, which limits it to that study.
"""

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal

from storage import durable, locks, markers, reading, visible
from storage.attempts import exactness
from storage.errors import BadInput
from storage.generations import EARLIER
from storage.inside import Outside, copy, inside, parts
from storage.reading import of_kind
from storage.run_directory import LATEST, SCRATCH, RunDirectory, find_runs, read, run_in

BESIDE_OUTPUTS = (
    "study.json",
    "COMPLETE.json",
    "generation.json",
    "preflight.json",
    "metrics.jsonl",
    "timing.jsonl",
)
"""An export holds these beside the outputs that the marker lists, and the records and logs of attempts."""
LEFT_OUT = ("model", "initial", "text")
"""An export leaves these output folders out: weights, and text that may not be ours to hand on."""
MANIFEST = "MANIFEST.json"
PRUNED = ("checkpoints", "records", SCRATCH, EARLIER)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m storage", description=__doc__.splitlines()[0])
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parser.parse_args(arguments)
    visible.log_visibly()
    return run(options)


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds `verify`, `prune` and `export` to a command line; `run` does what it parses."""
    for name, text in (
        ("verify", "hash every output of every finished stage"),
        ("prune", "remove checkpoints and record parts of finished stages"),
        ("export", "copy results, without weights, text and checkpoints, to a folder"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(work="storage.__main__:run", command=name)
        add_root(command)
        command.add_argument("--study", help="this study only (default: every study below ROOT)")
        if name == "verify":
            add_json(command)
        if name == "prune":
            command.add_argument("--yes", action="store_true", help="remove; without it, only say what would go")
        if name == "export":
            command.add_argument("folder", type=Path, help="new folder for the copy")


def add_json(command: argparse._ActionsContainer) -> None:
    command.add_argument("--json", action="store_true", help="the same as one JSON document")


def add_root(command: argparse.ArgumentParser) -> None:
    """Adds the folder that a command looks at, as an argument and as the option `--root`."""
    runs, help_ = Path("runs"), "folder of the run directories (default: runs; where there is none, the site's)"
    command.add_argument("root", metavar="ROOT", nargs="?", action=_SetIfNamed, type=Path, default=runs, help=help_)
    command.add_argument("--root", type=Path, default=runs, help="the same")


class _SetIfNamed(argparse.Action):
    """Keeps the default from replacing a value that the option of the same name has set already."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        if values is not self.default:
            setattr(namespace, self.dest, values)


def run(options: argparse.Namespace) -> int:
    """Does what `add_commands` parsed; returns the exit code."""
    if not options.root.is_dir():
        return _refuse(f"there is no folder {options.root}", 2)
    studies = sorted({path.parts[-3] for path in find_runs(options.root)})
    if not studies:
        return _refuse(f"there are no runs below {options.root}: give the folder that --root named", 2)
    if options.study and options.study not in studies:
        names = ", ".join(studies)
        return _refuse(f"there is no study {options.study!r} below {options.root}: there are {names}", 2)
    try:
        if options.command == "verify":
            return verify(options.root, options.study, options.json)
        if options.command == "prune":
            return prune(options.root, options.yes, options.study)
        return export(options.root, options.folder, options.study)
    except OSError as error:
        return _refuse(f"{error.filename or options.root}: {error.strerror}", 1)
    except Outside as error:
        return _refuse(str(error), 1)


class Verified(NamedTuple):
    """How one run stands."""

    state: str
    """verified, unfinished or REFUSED"""
    run: str
    """Its folder below the root."""
    of: str = ""
    """The cell of the study, or that it is an exported copy."""
    reason: str = ""
    """Why its marker does not hold; of one that holds, what nothing shows of how it went on."""

    @property
    def line(self) -> str:
        return f"{self.state:<11} {self.run}" + f" ({self.of})" * bool(self.of) + f": {self.reason}" * bool(self.reason)


def verify(root: Path, study: str | None = None, as_json: bool = False) -> int:
    """Prints one line for each run when it is known, then the counts; or all as JSON.

    Returns 1 when a marker does not hold.
    """
    rows = []
    try:
        for row in _verified_copy(root, study) if (root / MANIFEST).is_file() else _verified(root, study):
            rows.append(row)
            if not as_json:
                _say(row.line)
    except BadInput as error:
        return _refuse(str(error), 1)
    counts = Counter(row.state for row in rows)
    code = min(counts["REFUSED"], 1)
    if as_json:
        report = {"root": str(root), "counts": counts, "runs": [row._asdict() for row in rows]}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return code
    rest = (f", {number} {state}" for state, number in sorted(counts.items()) if number and state != "verified")
    doubted = sum("ratchet rehearse" in row.reason for row in rows if row.state == "verified")
    exact = f", {doubted} of them continued and not shown to be exact" * bool(doubted)
    return _say(f"{counts['verified']} of {counts.total()} runs verified{exact}{''.join(rest)}", code)


def _verified(root: Path, study: str | None) -> Iterator[Verified]:
    runs, wrong = _runs(root, study)
    yield from wrong
    for run in runs:
        verdict = _verdict(run)
        state = "verified" if verdict.holds else "REFUSED" if verdict.present else "unfinished"
        cell = read(run.stage_file).get("configuration", {}).get("cell")
        reason = {"REFUSED": verdict.reason, "verified": exactness(run)}.get(state, "")
        yield Verified(state, str(run.path.relative_to(root)), cell or "", reason)


def _verified_copy(root: Path, study: str | None) -> Iterator[Verified]:
    """Compares an export, which lacks weights and text, with its manifest, and each output with its marker."""
    try:
        manifest = dict(
            reading.json_value(reading.read_bytes(root / MANIFEST, reading.MANIFEST_BYTES), root / MANIFEST)
        )
    except (ValueError, TypeError) as error:
        raise BadInput(f"{root / MANIFEST} is not that of an export: {error}") from None
    places = [name.removesuffix("/COMPLETE.json") for name in manifest if name.endswith("/COMPLETE.json")]
    for place in (place for place in places if study in (None, place.partition("/")[0])):
        copied = {name: digest for name, digest in manifest.items() if name.startswith(f"{place}/")}
        try:
            reason = _wrong_copy(root, place, copied)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it cannot be verified: {error}"
        yield Verified("REFUSED", place, "", reason) if reason else Verified("verified", place, "exported copy")


def _wrong_copy(root: Path, place: str, manifest: dict[str, str]) -> str:
    """Names the file of a copied run that is not what the manifest or the run's marker says; empty if none."""
    for name, digest in manifest.items():
        if not (root / name).exists() or durable.sha256_file(inside(root, name)) != digest:
            return f"{name} is not what was exported"
    outputs = durable.read_json(inside(root, f"{place}/COMPLETE.json"))["outputs"]
    digests = {f"{place}/{name}": output["sha256"] for name, output in outputs.items()}
    differing = [name for name in manifest if digests.get(name, manifest[name]) != manifest[name]]
    return f"{differing[0]} is not what its marker lists" if differing else ""


def prune(root: Path, really: bool, study: str | None = None) -> int:
    """Removes PRUNED from runs whose marker fully verifies and which nobody holds."""
    freed, (runs, unreadable) = 0, _runs(root, study)
    for row in unreadable:
        _say(row.line)
    for run in runs:
        if not _verdict(run).holds or locks.holder(run.path / "locks"):
            continue
        for name in PRUNED:
            folder = run.path / name
            if not folder.is_dir():
                continue
            try:
                inside(root, folder.relative_to(root).as_posix(), folder=True)
            except Outside:
                _say(
                    f"left alone  {folder.relative_to(root)}: a link leads there, and what it leads to is not of {root}"
                )
                continue
            size = sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
            freed += size
            _say(f"{'removed' if really else 'would remove'}  {folder.relative_to(root)}  {decimal(size)}")
            if really:
                shutil.rmtree(folder)
    return _say(f"{decimal(freed)} {'freed' if really else 'would be freed; add --yes to remove'}", 0)


def export(root: Path, folder: Path, study: str | None = None) -> int:
    """Copies what every finished run made, without LEFT_OUT, and `MANIFEST.json` with the digest of each copy.

    A run whose marker does not fully verify is refused, and then nothing is written under the final name.
    """
    if folder.exists():
        return _refuse(f"{folder} is there already: name a new folder", 2)
    runs, unreadable = _runs(root, study)
    verdicts = [(run, _verdict(run)) for run in runs]
    refused = [(run, verdict) for run, verdict in verdicts if verdict.present and not verdict.holds]
    for run, verdict in refused:
        _say(f"REFUSED     {run.path.relative_to(root)}: {verdict.reason}")
    for row in unreadable:
        _say(row.line)
    if refused or unreadable:
        return _refuse("nothing was exported: run these stages again first", 1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with durable.new_directory(folder) as copies:
        manifest = {}
        for run, verdict in verdicts:
            place = run.path.relative_to(root).as_posix()
            for name, digest in _exported(run.path).items() if verdict.holds else ():
                manifest[f"{place}/{name}"] = copy(root, f"{place}/{name}", copies, digest)
        for run, verdict in verdicts:
            latest = root / run.study / LATEST
            if verdict.holds and latest.is_symlink() and latest.resolve() == run.path.resolve():
                durable.replace_link(copies / run.study / LATEST, copies / run.path.relative_to(root))
        durable.write_json(copies / MANIFEST, manifest)
    return _say(f"{len(manifest)} files in {folder}", 0)


def _exported(run: Path) -> dict[str, str | None]:
    """Maps each file of a finished run that an export holds to its sha256, where the marker says it."""
    others = [name for name in BESIDE_OUTPUTS if os.path.lexists(run / name)]
    attempts = [file for file in (run / "attempts").glob("[0-9]*") if file.suffix in (".json", ".log")]
    outputs = durable.read_json(run / "COMPLETE.json")["outputs"]
    digests = {name: output["sha256"] for name, output in outputs.items() if parts(name)[0] not in LEFT_OUT}
    return dict.fromkeys([*others, *(f"attempts/{file.name}" for file in attempts)]) | digests


def _runs(root: Path, study: str | None) -> tuple[list[RunDirectory], list[Verified]]:
    """The runs below `root` (of one study or of all), as their stage.json names them, and what is unreadable."""
    runs, unreadable = [], []
    marked = {marker.parent for marker in root.glob("*/*/*/COMPLETE.json")}  # also where stage.json was lost
    paths = sorted({*find_runs(root), *marked})
    for path in (path for path in paths if study in (None, path.parts[-3])):
        try:
            runs.append(run_in(path))
        except BadInput as error:
            reason = str(error).removeprefix(f"{path}/")
            unreadable.append(Verified("REFUSED", str(path.relative_to(root)), reason=reason))
    return runs, unreadable


def _verdict(run: RunDirectory) -> markers.Verdict:
    """Verifies every byte of the run, and that the inputs its marker lists are those that are there now."""
    inputs: dict[str, str] = {}
    try:
        roles = of_kind(run.stage_file, durable.read_json(run.stage_file)).get("inputs")
        sources = run.reads(roles)
    except (OSError, ValueError, BadInput) as error:
        return markers.Verdict(False, f"this directory is not readable, because {error}")
    if roles is None:  # a run that knows no inputs: only its own bytes can be verified
        return markers.check_outputs(run)
    for role, source in sources.items():
        verdict = markers.check_outputs(source)
        if not verdict.holds and run.marker_file.exists():
            return markers.Verdict(False, f"its input {role} in {source.path} does not hold: {verdict.reason}")
        inputs[role] = verdict.outputs_digest
    return markers.check(run, inputs, full=True)


def _say(text: str, code: int = 0, refused: bool = False) -> int:
    stream, text = sys.stderr if refused else sys.stdout, visible.line(text)
    stream.write((visible.wrapped(text, shutil.get_terminal_size().columns) if stream.isatty() else text) + "\n")
    return code


def _refuse(text: str, code: int) -> int:
    return _say(f"error: {text}", code, refused=True)


if __name__ == "__main__":
    raise SystemExit(main())
