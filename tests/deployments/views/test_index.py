"""The index page of a root: what came out, newest first, with links that lead somewhere."""

import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from deployments.views.index import write_index
from flows import command
from storage import durable, markers
from tests.flows.answers import Study, finished
from tests.tasks.findings.test_page import Reader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An older study of two results, a newer one of one, and one that failed."""
    root = tmp_path / "runs"
    for number, study in enumerate(
        [Study(name="older"), Study(name="older", words=20), Study(name="newer"), Study(name="failed", fails=True)]
    ):
        last = finished(root, study)[-1]
        for file in last.run.attempts.glob("*.json"):
            durable.write_json(file, durable.read_json(file) | {"ended_at": 1e9 + 60 * number})
    return root


def page(root: Path) -> tuple[str, Reader]:
    html = write_index(root).read_text()
    return html, Reader(html)


def test_every_study_stands_there_the_newest_first_with_results_newest_first(root):
    html, reader = page(root)
    titles = [html.index(f"<h2>{name}</h2>") for name in ("newer", "older", "failed")]
    assert titles == sorted(titles)
    assert html.index("20 words &amp; more") < html.rindex("10 words &amp; more")
    assert "4 of 4 begun stages are finished." in reader.text and "words 20" in reader.text
    assert "3 studies, 3 results" in reader.text


def test_what_is_not_finished_says_how_it_stands(root):
    reader = page(root)[1]
    assert "not finished: count" in reader.text and "the words are there: measured 0, required 10" in reader.text


def test_every_link_leads_to_something_below_the_root_also_when_the_root_is_moved(root, tmp_path):
    odd = root / "odd #1 ?&"
    shutil.copytree(root / "older", odd)
    html, reader = page(root)
    moved = root.rename(tmp_path / "moved")
    targets = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
    outside = [target for target in targets if target and not target.startswith(("#", "data:"))]
    assert len(outside) == 2 * 5 and html.count("report.html") == 5
    for target in outside:
        assert (moved / unquote(target)).exists(), target
    assert sum("?" in target or "&" in target for target in outside) == 0, "they are part of the names"


def test_no_large_output_is_read(root, monkeypatch):
    """A copied root has other times and inodes: a study that finishes there would hash every model of the root."""
    copy = Path(shutil.copytree(root, root.parent / "copy", copy_function=shutil.copy))

    def hashes(path: Path) -> str:
        raise AssertionError(f"{path} was hashed")

    monkeypatch.setattr(durable, "sha256_file", hashes)
    monkeypatch.setattr(markers, "GLANCED_BYTES", 0)
    assert "3 studies, 3 results" in page(copy)[1].text


def test_a_page_of_somebody_else_stays_and_one_of_ours_is_replaced(root, capsys):
    (root / "index.html").write_text("<title>mine</title>")
    assert command.ratchet(["index", str(root)]) == 2
    assert f"{root}/index.html is not the page of an earlier time" in capsys.readouterr().err
    assert (root / "index.html").read_text() == "<title>mine</title>"
    (root / "index.html").unlink()
    for study in ("newer", "failed"):
        before = page(root)[0]
        shutil.rmtree(root / study)
        assert page(root)[0] != before


def test_the_command_says_where_the_page_is(root, capsys):
    assert command.ratchet(["index", str(root)]) == 0
    assert capsys.readouterr().out == f"{root}/index.html\n" and (root / "index.html").exists()
    assert command.ratchet(["index", str(root / "nothing")]) == 2
    assert f"there are no runs below {root}/nothing" in capsys.readouterr().err
