"""Reads files that others may have made: only regular ones, up to a bound, with values of the kinds that are expected.

A pipe blocks, a device has no end, and a small file of brackets can grow huge: one such file in a root that a group
shares must stop no command. The bounds are far above what Ratchet writes. A value of another kind is refused.
"""

import codecs
import errno
import io
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import yaml

from storage.errors import BadInput, cut

Answer = TypeVar("Answer")
JSON_BYTES, MANIFEST_BYTES = 16 * 2**20, 64 * 2**20
"""A marker of 1,000 files has 0.3 MB; the manifest of an export of 100,000 files 20 MB, and a long table 10 MB."""
YAML_BYTES = 256 * 2**10
"""A study has 10 kB."""
ROWS_BYTES = 2**30
"""The bound of a file of rows; a million steps are 300 MB."""
LOG_BYTES = 64 * 2**10
"""The length of the end of a log that is read for its last lines."""
UNANSWERED = (errno.ESTALE, errno.EIO)
DEPTH = 64
DIGITS = 100


def tried_twice(call: Callable[[], Answer]) -> Answer:
    """What a call of the disk returns; where a disk of a network lost a handle or an answer, it is tried once again."""
    try:
        return call()
    except OSError as error:
        if error.errno not in UNANSWERED:
            raise
        return call()


def opened(path: Path, links: bool = True) -> io.BufferedReader:
    """Opens a regular file without blocking; ValueError for a pipe, a socket or a device.

    Raises OSError for a link unless `links`.
    """
    refused = ValueError(f"{path} is a pipe, a socket or a device and no regular file: it is not read, remove it")
    try:
        how = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | (0 if links else os.O_NOFOLLOW)
        descriptor = tried_twice(lambda: os.open(path, how))
    except OSError as error:
        raise refused if error.errno in (errno.ENXIO, errno.ENODEV) else error from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) if stat.S_ISDIR(mode) else refused


def read_bytes(path: Path, at_most: int | None = JSON_BYTES) -> bytes:
    """The bytes of a regular file; ValueError where there are more than `at_most`."""

    def read() -> bytes:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if at_most is not None and size > at_most:
                raise ValueError(f"{path} has more than {at_most:,} bytes, as no file of ours has: it is not read")
            return file.read(size)

    return tried_twice(read)


def read_text(path: Path) -> str:
    """The text of a table, or another file that is shown as a whole; raises OSError or ValueError."""
    return read_bytes(path, MANIFEST_BYTES).decode("utf-8-sig")


def end_of(path: Path, at_most: int) -> bytes:
    """The last bytes of a log; they are shown to others, so no link is followed."""
    with opened(path, links=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - at_most))
        return file.read(at_most)


def last_lines(path: Path, number: int) -> list[str]:
    """The last lines of a log; none where it cannot be read."""
    try:
        return end_of(path, LOG_BYTES).decode(errors="replace").splitlines()[-number:]
    except (OSError, ValueError):
        return []


def json_value(data: bytes, where: object) -> Any:
    """Parses JSON; ValueError naming `where` it is."""
    try:
        value = json.loads(data)
        if data.count(b"[") + data.count(b"{") > DEPTH:
            _require_shallow(value)
    except RecursionError:
        raise ValueError(f"{where} nests lists and groups more than {DEPTH} deep, as no file of ours does") from None
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    return value


def _require_shallow(value: object) -> None:
    level = [value]
    for _ in range(DEPTH + 1):
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [child for children in nested for child in children]
    if level:
        raise RecursionError


class Loader(yaml.SafeLoader):
    """YAML nested no deeper than DEPTH, without aliases and endless numbers."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        self._depth += 1
        self._require(self._depth <= DEPTH, f"lists and groups are nested more than {DEPTH} deep", event)
        alias = f"an alias is not read here: write the value of *{getattr(event, 'anchor', '')} itself"
        self._require(not isinstance(event, yaml.AliasEvent), alias, event)
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        number = isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float"))
        self._require(not number or len(node.value) <= DIGITS, f"a number of more than {DIGITS} digits", event)
        return node

    @staticmethod
    def _require(holds: bool, problem: str, event: Any) -> None:
        if not holds:
            raise yaml.composer.ComposerError(None, None, cut(problem), event.start_mark)


def yaml_value(text: str, where: object, loader: type[Loader] = Loader) -> Any:
    """Parses YAML; ValueError naming `where` it is."""
    try:
        reader = loader(text)
        reader.name = str(where)
        return reader.get_single_data()
    except Exception as error:  # a tag that its value does not fit, `!!int ""`, is an IndexError
        raise ValueError(f"{where} cannot be read as YAML: {cut(str(error) or repr(error), 1000)}") from None


def read_yaml(path: Path, loader: type[Loader] = Loader) -> Any:
    """Reads a YAML file; raises OSError, or ValueError naming the file."""
    data = read_bytes(path, YAML_BYTES)
    try:
        marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell writes
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as YAML: it is no UTF-8: {error}") from None
    return yaml_value(text, path, loader)


def given_yaml(path: Path, missing: str, loader: type[Loader] = Loader) -> Any:
    """The YAML value of a file that a person names. BadInput: `missing` where it is not there, or what is wrong."""
    try:
        return read_yaml(path, loader)
    except FileNotFoundError:
        raise BadInput(missing) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read as YAML: {error}") from None
    except ValueError as error:
        raise BadInput(str(error)) from None


NUMBER, MAYBE_NUMBER, MAYBE_TEXT = (int, float), (int, float, NoneType), (str, NoneType)
FAR = 1e15
"""The largest magnitude of a number: one beyond could be no time."""
DIAGNOSIS = dict.fromkeys(("level", "category", "summary", "detail", "resolution"), MAYBE_TEXT)
SECONDS = ("started_at", "ended_at", "cpu_seconds", "start_seconds", "step_seconds", "save_seconds")
KINDS: Mapping[str, Mapping[str, Any]] = {
    "stage.json": dict.fromkeys(("stage", "study", "fingerprint"), str)
    | {"version": int, "configuration": {"cell": MAYBE_TEXT}, "scientific": {}, "inputs": {}}
    | {"numerics_changes": [{"from_step": int, "after_rollbacks": int, "micro_batch_examples": int, "compile": str}]},
    "study.json": {"page": str, "study": {}, "over": {}},
    "progress.json": {"step": NUMBER, "total": MAYBE_NUMBER, "unit": str, "note": str, "eta_seconds": MAYBE_NUMBER},
    "attempts": dict.fromkeys(("host", "hardware", "end_state", "slurm_job_id", "slurm_job_name", "started_by"), str)
    | dict.fromkeys((*SECONDS, "peak_memory_bytes"), NUMBER)
    | {"attempt": int, "began_at": [int], "diagnosis": DIAGNOSIS, "source": {}, "numerics": {}, "versions": {}},
    "locks": {"at": NUMBER},
    "jobs": dict.fromkeys(("name", "flow_run", "state_id", "job_id"), str)
    | dict.fromkeys(("number", "cpus", "gpus", "attempts_before"), int)
    | dict.fromkeys(("submitted_at", "ended_at", "memory_gb", "memory_cap_gb", "time_limit_minutes"), NUMBER)
    | {"end": {"follows": str, "message": str, "delay_seconds": NUMBER, "memory_gb": MAYBE_NUMBER, "exclude": [str]}},
}
"""Kinds by the name of a file, or of a folder of files of one kind, in which any value may be null (unknown). A name
that is not listed may hold anything."""
REQUIRED = {"attempts": "attempt"}
"""What is read of each file of a folder without asking whether it is there."""


def of_kind(file: Path, value: object) -> dict[str, Any]:
    """Returns the JSON object of a file; ValueError where it is none, or where a name has another kind of value."""
    kinds = KINDS.get(file.parent.name) or KINDS.get(file.name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{file} is no JSON object")
    if (name := REQUIRED.get(file.parent.name)) and value.get(name) is None:
        raise ValueError(f"{file} was not written by Ratchet: it says no {name}")
    for name, field in value.items():
        unknown = field is None and file.parent.name in KINDS
        if name in kinds and not unknown and not fits(field, kinds[name]):
            raise ValueError(f"{file} was not written by Ratchet: {name} is no {_kind(kinds[name])}")
    return value


def fits(value: object, kind: Any) -> bool:
    """Checks a value against a kind: a type, a list of one kind, or a group of named kinds."""
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(
            fits(value[name], inner) for name, inner in kind.items() if name in value
        )
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(inner, kind[0]) for inner in value)
    return isinstance(value, kind) and (not isinstance(value, int | float) or abs(value) < FAR)


def _kind(kind: object) -> str:
    if isinstance(kind, dict | list):
        return "group of names and values" if isinstance(kind, dict) else "list of such values"
    return "text" if kind in (str, MAYBE_TEXT) else "number"
