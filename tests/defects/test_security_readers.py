"""What strangers made: one bad run directory stops no command over its root, and nothing in it acts on a terminal."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from markdown_it import MarkdownIt
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.dag.page import load_page
from deployments.prefect.artifacts import StageArtifacts, StudyArtifacts
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import End, Journal, Submission
from deployments.slurm.pool.reconcile import Finish, Seen, reconcile
from deployments.slurm.study import study as study_file
from deployments.slurm.study.follow import Studies
from deployments.slurm.study.looks import Entry, Looks
from deployments.slurm.study.mirror import jobs_markdown
from flows.command.settings import read_study
from storage import durable, locks, markers
from storage.errors import BadInput
from storage.run_directory import RunDirectory
from storage.visible import is_hidden, visible
from tasks.findings.document import Document, Excerpt, Figure, Folded, Section
from tasks.findings.page import html_page
from tasks.findings.table import Link, Table
from tasks.stage.outcome import Diagnosis
from tests.deployments.slurm.pool.test_reconcile import job, record, run, submission
from tests.storage import runs

SECONDS = 60
"""So long each command may take, also on a busy machine: one that waits for a pipe, or reads a device, never ends."""
DEEP = "[" * 200_000
ESCAPES = "\x1b]52;c;aGk=\x07\x1b[2J\x9b1m\u200e\u061c\u200b\u202egnp\r\n  2026-01-01 00:00  forged, seed 42"


def finished(root: Path, seed: int, study: str = "study", **result: Any) -> RunDirectory:
    """A finished run whose marker holds, with a result that people read."""
    run = RunDirectory(root, study, "train", runs.run_of(root, seed=seed).fingerprint)
    runs.fill(run)
    described = {"stage": "train", "fingerprint": run.fingerprint, "version": 1, "external": {}}
    durable.write_json(run.stage_file, described | {"scientific": {"seed": seed}, "inputs": {}, "configuration": {}})
    durable.write_json(run.path / "result.json", {"report": "report.md", "headline": "0.25", **result})
    durable.write_bytes(run.path / "report.md", b"text")
    runs.finish(run, {})
    run.attempts.mkdir()
    durable.write_json(run.attempts / "0001.json", {"attempt": 1, "started_at": 1.0, "ended_at": 2.0, "host": "n1"})
    return run


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def device(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def writes(value: Any) -> Callable[[Path], None]:
    text = value if isinstance(value, str) else json.dumps(value)
    return lambda file: file.write_text(text) and None


def adds(value: dict[str, Any]) -> Callable[[Path], None]:
    return lambda file: durable.write_json(file, durable.read_json(file) | value)


BAD: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a marker that is a pipe": ("COMPLETE.json", pipe),
    "a stage.json that is a pipe": ("stage.json", pipe),
    "an output that is a device": ("result.json", device),
    "a deep stage.json": ("stage.json", writes(DEEP)),
    "a deep marker": ("COMPLETE.json", writes(DEEP)),
    "a deep result": ("result.json", writes(DEEP)),
    "a list for a stage.json": ("stage.json", writes([1])),
    "a version that is text": ("stage.json", adds({"version": "1" * 5000})),
    "inputs that are text": ("stage.json", adds({"inputs": "x"})),
    "a configuration that is a list": ("stage.json", adds({"configuration": [1]})),
    "a record that is a pipe": ("attempts/0001.json", pipe),
    "a record of other kinds": ("attempts/0001.json", writes({"attempt": [1], "ended_at": "now", "diagnosis": "x"})),
    "a record beyond all time": ("attempts/0001.json", writes({"attempt": 1, "started_at": 1, "ended_at": 1e300})),
    "a lock that is a pipe": ("locks/1.json", pipe),
    "a lock of no number": ("locks/\u00b2.json", writes({})),
    "progress of other kinds": ("progress.json", writes({"step": "x", "total": {}, "unit": [1]})),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of many studies: an honest run in each, and beside it one that a stranger prepared."""
    root = tmp_path_factory.mktemp("shared") / "runs"
    for number, (file, spoil) in enumerate(BAD.values()):
        finished(root, 0, f"study-{number}")
        run = finished(root, 1, f"study-{number}")
        if file.startswith(("attempts", "locks", "progress")):
            run.marker_file.unlink()
            (run.path / "locks" / "1.released").unlink()
        spoil(run.path / file)
    signed = [{"headline": ["x"]}, {"report": 3, "tables": {"a": 1}}, {"report": "../../../../../etc/passwd"}]
    for number, result in enumerate([*signed, {"trivial": ["x"], "ratio_to_trivial": 1}, {"x": [[[[{}]]]]}]):
        finished(root, 0, f"signed-{number}")
        finished(root, 1, f"signed-{number}", **result)
    return root


ONE_PROCESS = """
import json, sys
from flows.command import ratchet
for words in json.loads(sys.argv[1]):
    print(chr(10) + "exit code", ratchet(words), end=chr(0), flush=True)
"""


def answers(*commands: list[Any], **environment: str) -> list[str]:
    """What `ratchet` prints for each command, all in one process, which must end by itself and without a traceback."""
    words = json.dumps([list(map(str, command)) for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", ONE_PROCESS, words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
        env=os.environ | environment,
    )
    text = done.stdout.decode()
    assert "Traceback" not in text and text.count("\0") == len(commands), text
    return text.split("\0")[:-1]


@pytest.fixture(scope="module")
def told(root: Path) -> dict[str, str]:
    """What the commands over a root say of it."""
    taken = root.parent / "taken"
    finished(taken, 0)
    pipe(taken / "index.html")
    one, other = sorted((root / "study-9" / "train").iterdir())
    unreadable = next(run for run in (root / "study-1" / "train").iterdir() if not (run / "stage.json").is_file())
    csv_files = {name: root.parent / name for name in ("pipe.csv", "zero.csv", "large.csv")}
    pipe(csv_files["pipe.csv"])
    device(csv_files["zero.csv"])
    csv_files["large.csv"].touch()
    os.truncate(csv_files["large.csv"], 8 * 2**30)
    commands: dict[str, list[Any]] = {
        "list": ["list", root],
        "index": ["index", root],
        "a taken index": ["index", taken],
        "verify": ["verify", root],
        "prune": ["prune", root],
        "export": ["export", root, root.parent / "exported"],
        "export of one": ["export", root, root.parent / "one", "--study", "signed-4"],
        "compare": ["compare", one, other],
        "show": ["show", other],
        "compare a pipe": ["compare", csv_files["pipe.csv"]],
        "compare a device": ["compare", csv_files["zero.csv"]],
        "compare 8 GB": ["compare", csv_files["large.csv"]],
        "show a table of 8 GB": ["show", _with_table(root.parent / "tables", 8 * 2**30), "--table"],
        "show a table that is not listed": ["show", _with_table(root.parent / "unlisted", 10, listed=False), "--table"],
        "init of a pipe": ["init", "theirs", "--train-py", csv_files["pipe.csv"]],
        "show a pipe": ["show", unreadable, "--root", root],
    }
    return dict(zip(commands, answers(*commands.values()), strict=True))


def test_one_bad_run_directory_stops_no_list_and_says_why_in_one_line(told):
    text = told["list"]
    honest = [line for line in text.splitlines() if "report.md" in line]
    assert {f"study-{number}" for number in range(len(BAD))} <= {Path(line.strip()).parts[-4] for line in honest}
    for number, what in enumerate(BAD):
        of_study = text.split(f"study-{number} (", 1)[1].split("\nstudy-", 1)[0].splitlines()
        assert len(of_study) <= 7 and all(len(line) < 600 for line in of_study), (what, of_study)
    assert text.count("this directory is not readable, because") >= 5 and text.endswith("exit code 0")


def test_one_bad_run_directory_stops_no_page_of_a_root(told, root):
    assert told["index"].endswith("exit code 0") and told["index"].startswith(str(root / "index.html"))
    page = (root / "index.html").read_text()
    assert page.count("report.md") >= len(BAD) and 'href="/etc' not in page and 'passwd"' not in page
    assert "a pipe, a socket or a device" in told["a taken index"] and told["a taken index"].endswith("exit code 2")


def test_one_bad_run_directory_stops_no_verify_and_is_pruned_and_exported_by_none(told):
    assert told["verify"].count("verified ") >= len(BAD) and told["verify"].endswith("exit code 1")
    assert told["verify"].count("REFUSED ") >= 6 and "would be freed" in told["prune"]
    assert "nothing was exported" in told["export"] and told["export"].endswith("exit code 1")
    assert "files in" in told["export of one"]


def _with_table(root: Path, size: int, listed: bool = True) -> Path:
    """A run that names a table, as anybody may write, whose marker does not verify every byte here."""
    run = finished(root, 0, tables=["large.md"])
    (run.path / "large.md").touch()
    os.truncate(run.path / "large.md", size)
    marker = durable.read_json(run.marker_file)
    marker["outputs"] |= {"large.md": {"sha256": "0" * 64, "size": size, "mtime_ns": 0, "inode": 0}} if listed else {}
    durable.write_json(run.marker_file, marker)
    return run.path


def test_what_has_no_end_is_not_read_to_its_end(told):
    for name, said in {
        "compare a pipe": "a pipe, a socket or a device",
        "compare a device": "a pipe, a socket or a device",
        "compare 8 GB": "has more than 67,108,864 bytes",
        "show a table of 8 GB": "has more than 67,108,864 bytes",
        "show a table that is not listed": "is no output that the marker",
        "init of a pipe": "a pipe, a socket or a device",
    }.items():
        assert said in told[name] and told[name].endswith("exit code 2"), (name, told[name])


def test_a_bad_run_directory_that_is_named_is_a_sentence(told):
    assert "is no run directory" in told["show a pipe"] and told["show a pipe"].endswith("exit code 2")
    for name in ("compare", "show"):
        assert len(told[name]) < 5_000, told[name]


# ------------------------------------------------------------------------- what a file says does nothing to a terminal

HONEST = "Gr\u00f6\u00dfe \u8bed \U0001f469\u200d\U0001f52c [red]x[/red] :cat: [a](b)"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What commands print in a terminal of runs whose every text tries to act on it."""
    root = tmp_path_factory.mktemp("escapes") / "runs"
    finished(root, 0, headline=HONEST)
    run = finished(root, 1, "study" + ESCAPES.replace("/", ""), headline=f"good{ESCAPES}")
    failed = finished(root, 2, f"study{ESCAPES[:4]}")
    failed.marker_file.unlink()
    diagnosis = {"level": "error", "category": "crash", "summary": f"s{ESCAPES}", "resolution": f"r{ESCAPES}"}
    record = {"attempt": 1, "started_at": 1, "ended_at": 2, "end_state": f"crashed{ESCAPES}", "host": f"h{ESCAPES}"}
    durable.write_json(failed.attempts / "0001.json", record | {"diagnosis": diagnosis})
    (failed.attempts / "0001.log").write_text(f"line{ESCAPES}\n")
    (failed.path / f"odd{ESCAPES[:4]}").write_bytes(b"")
    lost = os.fsencode(root / "study" / "train") + b"/\xff\x1b[2J"
    os.mkdir(lost)
    Path(os.fsdecode(lost), "stage.json").write_text("{}")
    profile = root.parent / "profile.yaml"
    profile.write_text(json.dumps({"name": f"x{ESCAPES}", f"key{ESCAPES}": 1}))
    table = root.parent / "arms.csv"
    rows = [f"\x1b]0;t\x07[red]{arm},{seed},{seed + ord(arm)}\n" for arm in "ab" for seed in (1, 2, 3)]
    table.write_text("arm,seed,loss\n" + "".join(rows))
    of_runs = [["list", root], ["verify", root], ["show", failed.path], ["compare", run.path, failed.path]]
    others = [
        ["compare", table],
        ["show", f"x{ESCAPES}", "--root", root],
        ["run", "robustness", "--profile", profile, "--dry-run"],
    ]
    return answers(*of_runs, *others, FORCE_COLOR="1", COLUMNS="200")


def test_no_text_of_a_file_reaches_a_terminal_as_a_control_code(printed):
    ours = re.compile(r"\x1b\[[0-9;]*m")  # colours that we set ourselves
    for answer in printed:
        assert not any(map(is_hidden, ours.sub("", answer))), answer
        assert "\x1b[2J" not in answer and "\x1b]" not in answer
    shown = "".join(printed)
    assert r"\x1b]52;c;aGk=\x07" in shown and r"\u200e\u061c\u200b\u202e" in shown and r"\udcff\x1b[2J" in shown


HIDES = [
    *(0x2060, 0x2061, 0x2062, 0x2063, 0x2064, 0x00AD, 0x180E, 0x3164, 0x115F, 0x1160, 0xFFA0, 0xFFF9, 0xFFFB, 0x206A),
    *(0xE0001, 0xE0020, 0xE0041, 0xE007F, 0xE0100, 0x1D173, 0x1BCA0, 0x034F, 0x2028, 0x202E, 0xFEFF, 0x1B, 0x9B, 7),
]
PERSIAN, RAINBOW = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0601\u0661", "\U0001f3f3\ufe0f\u200d\U0001f308"


def test_what_cannot_be_seen_is_printed_as_its_number_in_a_terminal_and_on_a_page():
    text = "a".join(map(chr, HIDES))
    assert all(is_hidden(chr(number)) for number in HIDES), "each by itself"
    assert visible(text).isascii() and visible(text).count("\\") == len(HIDES)
    assert [visible(honest) for honest in (HONEST, PERSIAN, RAINBOW)] == [HONEST, PERSIAN, RAINBOW]
    table = Table(f"c{text}", [f"h{text}"], [[f"x{text}"], [Link(f"k{text}", "file.html")]])
    folded = Folded(f"u{text}", f"e{text}", excerpts=[Excerpt(f"p{text}", {f"n{text}": [(f"m{text}", True)]})])
    figure = Figure("f", f"<svg><text>{text}</text></svg>", f"g{text}")
    part = Section(f"s{text}", [f"t{text} **b{text}**"], [f"o{text}"], [figure], tables=[table], details=[folded])
    document = Document(f"d{text}", f"v{text}", f"l{text}", not_shown=[f"n{text}"], facts=[f"f{text}"], sections=[part])
    page = html_page(document, [Link(f"k{text}", "file.html")])
    assert not [hex(ord(character)) for character in page if is_hidden(character)]
    assert page.count(r"a\u202ea") >= 20


def test_a_line_end_in_a_text_begins_no_line_of_its_own(printed):
    for answer in printed[:4]:
        assert not re.search("^ {0,8}2026-01-01", answer, re.MULTILINE), answer  # a log's own stand further in


def test_honest_text_is_printed_as_it_stands_and_no_markup_is_read_in_it(printed):
    assert f"    {HONEST}\n" in printed[0]
    assert "[red]a" in printed[4] and "[red]b" in printed[4]


# ------------------------------------------------------------------------------------------------ files of a study

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


def test_a_bad_study_file_ends_no_walk_over_the_others(tmp_path, caplog):
    """Each study is told of in a line, and the next one is looked at."""
    folder = tmp_path / "study" / study_file.FOLDER
    folder.mkdir(parents=True)
    (folder / "deep.yaml").write_text(DEEP)
    (folder / "laughs.yaml").write_text(LAUGHS + "page: p\nstudy: {}\n")
    (folder / "list.yaml").write_text("[1]")
    pipe(folder / "pipe.yaml")
    device(folder / "zero.yaml")
    (folder / "gone.yaml").symlink_to(tmp_path / "nowhere")  # it ended the whole walk
    assert list(study_file.readable(tmp_path, Site(root=str(tmp_path)))) == [] and len(caplog.records) == 6
    site = Site(root=str(tmp_path))
    job, files = Looks(site), study_file.active(tmp_path)
    for file in files:
        job.add(Entry(file, tmp_path, by_person=False))
    assert len(files) == 6 and not Studies(site, job, lambda *_: None).look(), "none is followed any more"
    told = [each.getMessage() for each in caplog.records if "squeue" not in each.getMessage()]
    assert len(told) == 12 and all(len(line) < 2_000 for line in told)


def test_a_profile_of_a_stranger_ends_in_a_short_message(tmp_path):
    unknown = "".join(f"key{number}: {number}\n" for number in range(10_000))
    for name, text in {
        "deep": DEEP,
        "laughs": f"{LAUGHS}name: x",
        "unknown": unknown,
        "long": f"seed: {'x' * 200_000}",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        with pytest.raises(BadInput) as found:
            read_study(load_page("robustness"), str(tmp_path / f"{name}.yaml"), [], None)
        assert len(str(found.value)) < 21_000, name


def test_a_journal_of_other_kinds_of_values_is_not_understood_and_stops_no_poll(tmp_path):
    entry = {
        "number": 1,
        "name": "n",
        "flow_run": "f",
        "submitted_at": 1.0,
        "automatic": False,
        "memory_gb": 1.0,
        "end": None,
    }
    (tmp_path / "jobs").mkdir()
    for number, other in enumerate([{}, {"job_id": ["x"]}, {"submitted_at": "now"}, {"cpus": 1e300}], 1):
        durable.write_json(tmp_path / "jobs" / f"{number:04d}.json", entry | other)
    pipe(tmp_path / "jobs" / "0009.json")
    assert [one.number for one in Journal(tmp_path / "jobs").all()] == [1]


# ----------------------------------------------------------------------------------------------- Markdown in Prefect

LIVE = (
    "[x](javascript:alert(1)) ![p](http://evil.example/p.png) <img src=http://evil.example> \\\\[y](http://e.example)"
)


def test_no_text_of_a_file_is_a_link_an_image_or_html_on_a_page_of_prefect(prefect_server, tmp_path):
    run = finished(tmp_path, 0, headline=f"**a** {LIVE}", tables=["table.md"])
    rows = f"| **a** | b |\n|---|---|\n| {LIVE} | `x` |"
    (run.path / "table.md").write_text(f"a caption {LIVE}\n\n{rows}\n\n[r]: javascript:x\n[r]\n")
    lock = locks.acquire(run.path / "locks")
    markers.write(run, [*runs.OUTPUTS, "report.md", "table.md"], {}, lock)
    lock.release()
    page = uuid4()
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        StudyArtifacts(client, "study", page).results(run)
        of_page = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[page]))
        found = [str(one.data) for one in client.read_artifacts(artifact_filter=of_page)]
        StageArtifacts(client, run, page).results()  # the UI renders each cell of a table as Markdown
        (of_result,) = [one.data for one in client.read_artifacts(artifact_filter=of_page) if one.type == "table"]
    rows_of_result = json.loads(of_result) if isinstance(of_result, str) else of_result
    found += [row["value"] for row in rows_of_result if row["what"] == "headline"]
    diagnosis = Diagnosis("error", "crash", f"it **is** {LIVE}", f"```\n{LIVE}", f"do {LIVE}")
    end = End("Failed", "m", diagnosis)
    ended = Submission(1, "n", "f", 1.0, True, 1.0, job_id=f"7 {LIVE}", end=end)
    found.append(jobs_markdown(Journal(tmp_path / "jobs"), [ended], {"attempt": 1, "host": LIVE}))
    assert len(found) == 4
    for text in found:
        outer = MarkdownIt("commonmark").enable("table").parse(text)
        tokens = [inner for token in outer for inner in (token, *(token.children or []))]
        kinds = {token.type for token in tokens}
        assert "strong_open" in kinds and not kinds & {"image", "html_inline", "html_block"}, text
        links = [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]
        assert all(re.fullmatch(r"/ratchet-report/[0-9a-f]{64}/[\w/.%-]+", link) for link in links), "our own alone"


def test_whether_a_cell_is_a_number_is_known_at_once():
    began = time.process_time()
    for cell in ("1" * 20_000 + "x", "," * 20_000, "1," * 20_000 + "e", ("1" * 5_000 + ".") * 4):
        Table("", ["a"], [[cell]]).markdown()
    assert time.process_time() - began < 5
    cells = ["", "-", "1", "1,234.5", ".5", "> 3e-12", "< 0.1 %", "-7%", "12,345"]
    others = ["x", "1.", "1e", "e5", "--1", "1 2", ",", "."]
    assert [Table("", ["a"], [[cell]]).right for cell in cells] == [[True]] * len(cells)
    assert [Table("", ["a"], [[cell]]).right for cell in others] == [[False]] * len(others)


def test_a_run_whose_records_hold_anything_keeps_the_pool_from_no_other(caplog):
    bad = record("finished", began_at=[1]) | {"end_state": ["x"], "diagnosis": [1]}
    others = [Seen(run(), [submission()], record("finished")), Seen(run(), [submission()], record("finished"))]
    ended = {"7": job("COMPLETED")}
    actions = reconcile([others[0], Seen(run(), [submission()], bad), others[1]], ended, {})
    assert [type(action) for action in actions] == [Finish, Finish]
    assert "is not readable, and stays as it is" in caplog.text
