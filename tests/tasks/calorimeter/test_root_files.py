"""ROOT files: what cannot be used is named by file and row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import external
from storage.errors import BadInput
from tasks.calorimeter.showers import read_trees, require_events

uproot = pytest.importorskip("uproot")
BRANCHES = {"light": 3, "energy": 1}


def written(file: Path, tree: str = "tree", **branches: Any) -> str:
    file.parent.mkdir(exist_ok=True)
    with uproot.recreate(file) as made:
        made[tree] = {
            "light": np.arange(12, dtype=np.float32).reshape(4, 3),
            "energy": np.arange(4, dtype=np.float64),
            "another": np.zeros(4),
        } | branches
    return str(file)


def parts(*files: str) -> list[tuple[str, int, dict[str, np.ndarray]]]:
    return list(read_trees(files, external.file_manifest(list(files)), "tree", BRANCHES, 3))


def test_events_come_in_parts_in_the_order_of_the_files(tmp_path):
    files = [written(tmp_path / name) for name in ("b.root", "a.root")]
    found = parts(*files)
    assert [(file, first) for file, first, _ in found] == [(file, first) for file in files for first in (0, 3)]
    light = np.concatenate([part["light"] for _, _, part in found])
    assert light.dtype == np.float32 and light.tolist() == np.tile(np.arange(12.0).reshape(4, 3), (2, 1)).tolist()
    assert found[1][2]["energy"].tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tree": "other"}, "has no tree 'tree'"),
        ({"light": np.zeros((4, 2), np.float32)}, "the branch light has not 3 numbers in each event"),
        ({"energy": np.array([*"abcd"])}, "the branch energy has not 1 numbers in each event"),
        ({"light": np.zeros((0, 3), np.float32), "energy": np.zeros(0), "another": np.zeros(0)}, "has no events"),
    ],
)
def test_what_a_file_lacks_is_named(change, said, tmp_path):
    with pytest.raises(BadInput, match=rf"one\.root.*{said}"):
        parts(written(tmp_path / "one.root", **change))


def test_the_trees_and_branches_that_are_there_are_named_with_the_key(tmp_path):
    """Seen: "has no tree 'tree', or is no ROOT file", and neither what is there nor which setting names it."""
    file = written(tmp_path / "one.root", tree="ana/rec")
    for tree, branches, said in (
        ("tree", {"light": 3}, "has no tree 'tree': its trees are ana/rec: set showers.tree to one"),
        ("ana/rec", {"charge": 1}, "no branch charge, but another, energy, light. showers.tree names it"),
    ):
        with pytest.raises(BadInput, match=said):
            list(read_trees([file], external.file_manifest([file]), tree, branches, 3, "showers.tree"))
    for tree in ("ana/rec", "/ana/rec", "ana/rec;1"):
        assert list(read_trees([file], external.file_manifest([file]), tree, {"light": 3}, 3))


def test_files_of_one_name_in_two_folders_are_two(tmp_path):
    """Seen: "two input files are both called 'data.root': rename one", where experiments call them so."""
    files = [written(tmp_path / run / "data.root", energy=np.full(4, float(at))) for at, run in enumerate(("b", "a"))]
    assert [(file, part["energy"].max()) for file, _, part in parts(*files)] == [
        (file, at) for at, file in enumerate(files) for _ in range(2)
    ]


def test_what_is_no_tree_under_its_name_is_refused(tmp_path):
    with uproot.recreate(tmp_path / "one.root") as made:
        made["tree"] = np.histogram(np.arange(4))
    with pytest.raises(BadInput, match=r"one\.root has no tree 'tree'"):
        parts(str(tmp_path / "one.root"))


@pytest.mark.parametrize("zeroed", [False, True], ids=["cut off", "zeroed"])
def test_a_damaged_file_is_named_and_a_damaged_part_by_its_first_row(zeroed, tmp_path):
    file, events = tmp_path / "one.root", 4000
    light = np.random.default_rng(0).random((events, 3), np.float32)
    written(file, light=light, energy=np.zeros(events), another=np.zeros(events))
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(data[:middle] + (bytes(2000) + data[middle + 2000 :]) * zeroed)
    row = "the events from row 0 on cannot be read" if zeroed else "has no tree 'tree', or is no ROOT file"
    with pytest.raises(BadInput, match=rf"one\.root.*{row}"):
        parts(str(file))


def test_what_is_no_ROOT_file_is_named(tmp_path):
    (tmp_path / "one.root").write_bytes(b"root, they say")
    with pytest.raises(BadInput, match=r"one\.root has no tree 'tree', or is no ROOT file"):
        parts(str(tmp_path / "one.root"))


def test_a_file_that_changed_since_it_was_hashed_is_refused(tmp_path):
    file = written(tmp_path / "one.root")
    digests = external.file_manifest([file])
    written(tmp_path / "one.root", energy=np.ones(4))
    with pytest.raises(BadInput, match="is not the file any more"):
        list(read_trees([file], digests, "tree", BRANCHES, 3))


def test_the_first_wrong_event_is_named_by_its_row_in_the_file():
    require_events("one.root", 300, {"no light": np.array([False, False])})
    with pytest.raises(BadInput, match=r"one\.root: the event in row 301 has no light"):
        require_events("one.root", 300, {"no light": np.array([False, True, True])})
