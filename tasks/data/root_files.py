"""ROOT files, in which particle physics keeps its events, read in parts by uproot, which is an extra.

Whatever cannot be used is BadInput, with the file and the row, before any work is spent on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from storage import external
from storage.errors import MESSAGE_SHOWN, BadInput, cut, install

TREES = {"TTree", "TNtuple", "TNtupleD", "ROOT::RNTuple"}
Part = tuple[str, int, dict[str, np.ndarray]]
"""The file, the number of the first event, and of each branch its numbers, fp32 [events, numbers]."""


def read_trees(
    files: Sequence[str],
    digests: Mapping[str, str],
    tree: str,
    branches: Mapping[str, int],
    at_once: int,
    key: str = "tree",
) -> Iterator[Part]:
    """The events of the files, one after the other; `branches` says how many numbers each event has in each.

    `digests` are the sha256 of the files by their names, as the fingerprint has them. BadInput names the trees or the
    branches that are there, and `key`, which sets the tree, where one is missing.
    """
    try:
        import uproot
    except ImportError:
        raise BadInput(f"ROOT files are read by uproot, which is not installed: {install('root')}") from None
    for called, path in external.local_files(*files):
        name = str(path)
        with external.opened(path, digests[called]) as opened:
            with _refused(f"{name} has no tree {tree!r}, or is no ROOT file"):
                whole = uproot.open(opened)
                trees = {of for of, kind in whole.classnames(cycle=False).items() if kind in TREES}
                given = whole[tree] if tree.partition(";")[0].strip("/") in trees else None
                there, events = ({*given.keys()}, given.num_entries) if given is not None else (set(), 0)
            if given is None:
                shown = cut(", ".join(sorted(trees)), MESSAGE_SHOWN)
                has = f"its trees are {shown}: set {key} to one" if trees else "it has none"
                raise BadInput(f"{name} has no tree {tree!r}: {has}")
            if missing := sorted({*branches} - there):
                has = cut(", ".join(sorted(there)), MESSAGE_SHOWN)
                raise BadInput(f"{name}: the tree {tree} has no branch {', '.join(missing)}, but {has}. {key} names it")
            if not events:
                raise BadInput(f"{name}: the tree {tree} has no events")
            first, several = 0, given.iterate([*branches], step_size=at_once, library="np")
            while first < events:
                with _refused(f"{name}: the events from row {first:,} on cannot be read"):
                    arrays = next(several)
                part = {branch: _numbers(name, branch, arrays[branch], of) for branch, of in branches.items()}
                yield name, first, part
                first += len(next(iter(part.values())))


@contextmanager
def _refused(fault: str) -> Iterator[None]:
    """BadInput for any error of uproot, which has none of its own for a file that is damaged or no ROOT file."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise BadInput(f"{fault} ({str(error).strip().partition(chr(10))[0]})") from None


def require_events(file: str, first: int, wrong: Mapping[str, np.ndarray]) -> None:
    """BadInput names the first event of a part with something that is `wrong`: what it has -> bool [events]."""
    for what, events in wrong.items():
        if events.any():
            row = first + int(events.argmax())
            raise BadInput(f"{file}: the event in row {row:,} has {what}: repair it, or leave it out")


def _numbers(file: str, branch: str, values: np.ndarray, required: int) -> np.ndarray:
    if values.dtype.kind not in "biuf" or values[0].size != required:
        raise BadInput(f"{file}: the branch {branch} has not {required:,} numbers in each event")
    return values.reshape(len(values), required).astype(np.float32)
