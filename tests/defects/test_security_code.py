"""What a run directory, a study file or a shared folder names is not run: found by a review, each with a proof.

A person names a study on the command line to have its code run; whoever has the workers runs what only they can have
written.
"""

import grp
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from deployments.dag.page import load_page
from deployments.dag.sources import KEPT
from deployments.slurm.cluster import ownership
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.job.resources import kept_resources
from deployments.slurm.study import preflight
from deployments.slurm.study import study as study_file
from deployments.slurm.study.follow import Studies
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.study import SlurmStudy
from flows import command
from storage import durable
from storage.errors import BadInput
from storage.run_directory import RunDirectory
from tasks.training.__main__ import main as training
from tests.flows.answers import Study, finished
from tests.slurm.harness import kept_study, toy_study

STRANGER = 65534
"""nobody"""


def evil(folder: Path, name: str = "evil.py") -> Path:
    """A page that leaves a witness where its module is imported."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"open({str(witness(folder))!r}, 'w')\nfrom tests.flows.answers import Study, page\n")
    return file


def witness(folder: Path) -> Path:
    return folder / "witness"


def a_run(root: Path, page: Path) -> RunDirectory:
    """A finished run that names the page in all places that are read."""
    handle = finished(root, Study(name="theirs"))[0]
    run = handle.run
    kept = {"page": str(page), "study": Study(name="theirs").model_dump(mode="json"), "over": {}}
    durable.write_json(run.study_file, kept)
    record = durable.read_json(run.attempts / "0001.json")
    record["source"] |= {"own_page": str(page), "own_digest": "0"}
    durable.write_json(run.attempts / "0001.json", record)
    return run


# --------------------------------------------------------------------------------- commands that read run directories


def test_show_does_not_run_the_page_that_a_run_directory_names(tmp_path, capsys):
    page = evil(tmp_path / "theirs")
    run = a_run(tmp_path / "runs", page)
    assert command.ratchet(["show", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert not witness(page.parent).exists()
    assert f"ratchet run {page} " in said


@pytest.mark.parametrize("place", ["theirs.evil", "evil", "storage.durable", ["flows.robustness"], "flows.command"])
def test_show_imports_no_module_that_a_run_directory_names(tmp_path, monkeypatch, capsys, place):
    folder = evil(tmp_path / "theirs").parent
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(folder))
    run = a_run(tmp_path / "runs", folder / "evil.py")
    durable.write_json(run.study_file, durable.read_json(run.study_file) | {"page": place})
    loaded = {*sys.modules}
    assert command.ratchet(["show", str(run.path)]) == 0
    assert not witness(folder).exists() and not {name for name in {*sys.modules} - loaded if "evil" in name}
    assert "  again    " in capsys.readouterr().out


def test_audit_runs_no_page_that_an_attempt_names(tmp_path):
    page = evil(tmp_path / "theirs")
    run = a_run(tmp_path / "runs", page)
    assert command.ratchet(["audit", str(run.path)]) == 2
    assert not witness(page.parent).exists()


def foreign(folder: Path, **named: str) -> Path:
    """A stranger's run directory as the training command reads it, and code beside it."""
    path = folder / "runs" / "study" / "train" / ("ab" * 6)
    path.mkdir(parents=True)
    for file in ("stranger.py", "torch.py", "argparse.py", "storage.py", "rich.py", "stranger_work.py"):
        evil(path, file)
    described = {
        "stage": "train", "study": "study", "version": 1, "fingerprint": "ab" * 32, "inputs": {},
        "configuration_type": "tasks.robustness.stages:SetupConfig", "configuration": {},
        "work": "tasks.language.setup:setup",
    }  # fmt: skip
    durable.write_json(path / "stage.json", described | named)
    return path


@pytest.mark.parametrize(
    "named",
    [
        {"configuration_type": "stranger:Config"},
        {"work": "stranger_work:train"},
        {"configuration_type": "tests.tasks.tiny:ToyConfig"},
        {"configuration_type": "tasks/../stranger:Config"},
        {"work": "tasks:os"},
    ],
)
def test_the_training_command_imports_no_code_that_a_run_directory_names(tmp_path, monkeypatch, capsys, named):
    path = foreign(tmp_path, **named)
    monkeypatch.setattr(sys, "path", [*sys.path, str(path)])
    assert training(["--run-dir", str(path)]) == 2
    assert "is not Ratchet's own" in capsys.readouterr().err and not witness(path).exists()
    for module in ("stranger", "stranger_work"):
        sys.modules.pop(module, None)
    training(["--run-dir", str(path), "--own", str(path)])
    assert witness(path).exists() == ({*named.values()} <= {"stranger:Config"}), "named by a person it runs"


@pytest.mark.parametrize(
    ("words", "code"),
    [(["tasks.training", "--run-dir", "."], 2), (["storage", "verify", "."], 2), (["flows", "--version"], 0)],
)
def test_python_m_takes_no_module_of_the_present_folder_for_one_of_ours(tmp_path, words, code):
    """What has the command's own name is Python's to find: docs/security.md says so."""
    path = foreign(tmp_path, configuration_type="stranger:Config")
    if words[0] == "storage":
        (path / "storage.py").unlink()
    done = subprocess.run([sys.executable, "-m", *words], cwd=path, capture_output=True, text=True, timeout=300)
    assert done.returncode == code and not witness(path).exists(), done.stderr


# ------------------------------------------------------------------------------------ what runs as the pool's owner

PAGE = "from own_helper import WORDS\nfrom tests.slurm.toy import Study, page\n"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copies that all these studies run from: to stage one takes a second."""
    pool = Pool(tmp_path_factory.mktemp("sources"))
    return pool.root / KEPT


@pytest.fixture
def own_copies(tmp_path: Path, sources: Path) -> Path:
    """As `sources`, for a test that changes them."""
    return Path(shutil.copytree(sources, tmp_path / "copies"))


class Pool:
    """A started study of one's own, and the site of its pool."""

    def __init__(self, folder: Path, sources: Path | None = None, **site: str) -> None:
        self.root, self.page, self.helper = (
            folder / "runs",
            folder / "own" / "mine.py",
            folder / "own" / "own_helper.py",
        )
        self.page.parent.mkdir(parents=True)
        self.page.write_text(PAGE)
        self.root.mkdir()
        if sources:
            (self.root / KEPT).symlink_to(sources)
        self.helper.write_text("WORDS = 1\n")
        self.file = kept_study(self.root, toy_study("mine"), load_page(str(self.page))).file
        self.other = kept_study(self.root, toy_study("other")).file
        self.site = Site(root=str(self.root), **site)
        for name in ("mine", "own_helper"):
            sys.modules.pop(name, None)
        self.page.write_text(f"open({str(witness(folder))!r}, 'w')\n{PAGE}")  # as somebody edits it
        self.ran = witness(folder)

    @property
    def copy(self) -> Path:
        return self.root / KEPT / study_file.source_of(self.file)

    def read(self) -> set[Path]:
        """The files of the studies that the pool's owner imports."""
        return {file for file, _, _ in study_file.readable(self.root, self.site)}


def a_shared_group() -> int:
    """A group that is not this user's alone, and that a file of this user's can be given."""
    groups = [one.gr_gid for one in grp.getgrall()] if os.geteuid() == 0 else os.getgroups()
    found = [gid for gid in groups if grp.getgrgid(gid).gr_name != ownership._user(os.geteuid())]
    if not found:
        pytest.skip("this user is in no group with others")
    return found[0]


def by_all(place: Path) -> None:
    place.chmod(place.stat().st_mode | 0o002)


def by_a_group(place: Path) -> None:
    os.chown(place, -1, a_shared_group())
    place.chmod(place.stat().st_mode | 0o020)


def by_its_owner(place: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives a file away")
    os.chown(place, STRANGER, -1)


def by_an_access_list(place: Path) -> None:
    """One of nobody's, beside the private group; the mode says nothing of it."""
    entries = [(1, 7, -1), (2, 7, STRANGER), (4, 7, -1), (16, 7, -1), (32, 5, -1)]
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(place, "system.posix_acl_access", listed)
    except OSError as error:
        pytest.skip(f"no access lists on this disk: {error}")


WRITTEN = [by_all, by_a_group, by_its_owner, by_an_access_list]
PLACES: dict[str, Callable[[Pool], Path]] = {
    "the study file": lambda pool: pool.file,
    "its folder": lambda pool: pool.file.parent,
    "the page": lambda pool: pool.page,
    "what it imports": lambda pool: pool.helper,
    "the page's folder": lambda pool: pool.page.parent,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("written", WRITTEN)
def test_a_study_that_others_may_write_is_not_imported_and_stops_no_other(tmp_path, sources, caplog, written, place):
    pool = Pool(tmp_path, sources)
    which = PLACES[place](pool)
    written(which)
    assert pool.read() == {pool.other}
    mends = "chown -h" if written is by_its_owner else "chmod"
    assert f"{which} " in caplog.text and mends in caplog.text and str(which) in caplog.text.partition(mends)[2]
    with pytest.raises(BadInput):
        SlurmStudy.kept(pool.file, pool.site, pool.root)
    assert not pool.ran.exists()


def test_the_command_that_a_refusal_names_mends_it(tmp_path, sources):
    pool = Pool(tmp_path, sources)
    by_a_group(pool.root)
    with pytest.raises(BadInput) as refused:
        SlurmStudy.kept(pool.file, pool.site, pool.root)
    assert f"{pool.root} may be written by the group " in str(refused.value) and "drwxrwxr-x" in str(refused.value)
    command_line = str(refused.value).split("runs as ")[1].partition(": ")[2].partition(",")[0]
    subprocess.run(command_line, shell=True, check=True)
    assert pool.read() == {pool.file, pool.other} and pool.ran.exists()


def test_a_root_with_a_umask_of_002_is_one_s_own_where_the_group_is(tmp_path, own_copies, monkeypatch):
    me = ownership._user(os.geteuid())
    if not ownership._is_private(os.getegid(), me):
        pytest.skip("this user has no group of their own")
    pool = Pool(tmp_path / "shared", own_copies)
    subprocess.run(["chmod", "-R", "g+w", tmp_path], check=True)  # as the umask would have left it
    assert pool.read() == {pool.file, pool.other}
    assert SlurmStudy.kept(pool.file, pool.site, pool.root).kept_source() == pool.copy
    own = grp.getgrgid(os.getegid())
    others = SimpleNamespace(gr_name=own.gr_name, gr_mem=[me, "bob"], gr_gid=own.gr_gid)
    monkeypatch.setattr(ownership.grp, "getgrgid", lambda gid: others)
    ownership._is_private.cache_clear()
    try:
        assert pool.read() == set(), "another one is in it"
    finally:
        ownership._is_private.cache_clear()


def test_a_group_that_the_site_names_shares_the_root_and_nobody_else(tmp_path, sources):
    gid = a_shared_group()
    pool = Pool(tmp_path, sources, trust_group=grp.getgrgid(gid).gr_name)
    for place in (pool.root, pool.file.parent, pool.file, pool.page):
        by_a_group(place)
    assert pool.read() == {pool.file, pool.other}
    by_all(pool.page)
    assert pool.read() == {pool.other}


def test_a_group_that_does_not_exist_is_no_group_to_trust(tmp_path):
    (file := tmp_path / "site.yaml").write_text(f"root: {tmp_path}\ntrust_group: no-such-group\n")
    with pytest.raises(BadInput, match=r"trust_group: .*there is no group 'no-such-group' here"):
        read_site(str(file))


def test_a_folder_with_the_sticky_bit_and_links_of_one_s_own_may_lie_above(tmp_path):
    shared, own = tmp_path / "tmp", tmp_path / "tmp" / "own"
    own.mkdir(parents=True)
    shared.chmod(0o1777)
    (link := tmp_path / "link").symlink_to(own)
    require_own([own / "not there yet", link / "file"])
    shared.chmod(0o777)
    for path in (own / "file", link / "file"):
        with pytest.raises(BadInput, match=f"^{shared} may be written by all"):
            require_own([path])
    shared.chmod(0o1777)
    with pytest.raises(BadInput, match=f"^{shared} may be written by all"):
        require_own([shared])  # modules would be imported from it
    os.lchown(link, STRANGER, -1) if os.geteuid() == 0 else None
    if os.geteuid() == 0:
        with pytest.raises(BadInput, match=f"^{link} belongs to "):
            require_own([link / "file"])


def test_a_start_says_that_others_may_write_the_root(tmp_path, sources, monkeypatch):
    """And not `advance` ten minutes later, in a log."""
    pool = Pool(tmp_path, sources)
    by_all(pool.root)
    slurm = SlurmStudy(load_page("tests.slurm.toy"), toy_study("other"), pool.site, pool.root)
    (said,) = preflight._unowned(slurm)
    assert said.startswith(f"{pool.root} may be written by all")


def test_no_job_takes_resources_of_a_study_that_others_may_write(tmp_path, sources):
    """`setup_lines` of it would stand in the next job's script."""
    pool = Pool(tmp_path, sources)
    assert kept_resources(pool.file) == {}
    by_a_group(pool.file)
    with pytest.raises(BadInput, match="may be written by the group"):
        kept_resources(pool.file)


def test_nobody_serves_a_root_that_others_may_write(tmp_path, sources):
    """Scripts of its job arrays lie there."""
    pool = Pool(tmp_path, sources)
    by_a_group(pool.root)
    with pytest.raises(BadInput, match="may be written by the group"):
        Studies(pool.site, Looks(pool.site), lambda *_: None).look()


# ------------------------------------------------------------------------------------ the copy that jobs run


def edited(copy: Path) -> None:
    (copy / "flows" / "stage.py").write_text("raise SystemExit(0)\n")


def added(copy: Path) -> None:
    (copy / "torch.py").write_text("")


def added_in_a_room(copy: Path) -> None:
    (copy / "tasks" / "deep.so").write_bytes(b"x")


def linked(copy: Path) -> None:
    (copy / "torch").symlink_to(copy.parent)


def compiled(copy: Path) -> None:
    (copy / "torch.pyc").write_bytes(b"x")


@pytest.mark.parametrize("changed", [edited, added, added_in_a_room, linked, compiled])
def test_a_copy_that_is_not_what_was_staged_starts_no_job(tmp_path, own_copies, changed):
    pool = Pool(tmp_path, own_copies)
    (pool.copy / "flows" / "__pycache__").mkdir()
    (pool.copy / "flows" / "__pycache__" / "stage.pyc").write_bytes(b"as Python writes it")
    assert SlurmStudy.kept(pool.file, pool.site, pool.root).kept_source() == pool.copy
    changed(pool.copy)
    with pytest.raises(BadInput, match=f"copy of the source {pool.copy} is not what was staged"):
        SlurmStudy.kept(pool.file, pool.site, pool.root).kept_source()


def test_a_copy_that_another_had_made_before_is_not_taken_for_ours(tmp_path, sources):
    """Its name can be known beforehand."""
    pool = Pool(tmp_path, sources)
    slurm = SlurmStudy(load_page("tests.slurm.toy"), toy_study("new"), pool.site, tmp_path / "new")
    added(evil(slurm.present_source).parent)
    with pytest.raises(BadInput, match="is not what was staged"):
        slurm.keep()


def test_no_copy_is_taken_from_elsewhere(tmp_path, own_copies):
    pool = Pool(tmp_path, own_copies)
    shutil.copytree(pool.copy, tmp_path / KEPT / pool.copy.name)
    values = yaml.safe_load(pool.file.read_text())
    for place in (f"../../{KEPT}/{pool.copy.name}", str(tmp_path / KEPT / pool.copy.name)):
        pool.file.write_text(yaml.safe_dump(values | {"source": place}))
        assert SlurmStudy.kept(pool.file, pool.site, pool.root).kept_source().parent == pool.root / KEPT


JOBS = """
import sys
from pathlib import Path
from flows.stage import main
words = sys.argv[1:]
print(main(words))
Path("own_helper.py").write_text("WORDS = 2")
print(main(words))
"""


def test_a_job_runs_its_copy_alone_and_refuses_one_that_was_changed(tmp_path, own_copies):
    """As its script starts it: in the copy."""
    pool = Pool(tmp_path, own_copies)
    values = yaml.safe_load(pool.file.read_text())
    pool.file.write_text(yaml.safe_dump(values | {"page": str(evil(tmp_path / "theirs"))}))
    words = [f"--study-file={pool.file}", "--stage=toy-training", f"--root={pool.root}"]
    done = subprocess.run(
        [sys.executable, "-c", JOBS, *words], cwd=pool.copy, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["2", "2"] and not witness(tmp_path / "theirs").exists()
    first, second = [line for line in done.stderr.splitlines() if "bad input" in line][::2]
    assert "evil.py is not in " in first and "is not what was staged" in second
