"""The README's study runs as it stands, and its pictures are those of real runs."""

import re

from flows import command
from tests.docs import pictures
from tests.docs.pages import PAGES, blocks_of

README = PAGES["README.md"]
(CODE,) = [block.text for block in blocks_of("README.md", README) if block.language == "python"]


def test_its_study_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "folds.py").write_text(CODE.replace("n_estimators=30", "n_estimators=1"))
    monkeypatch.chdir(tmp_path)
    assert command.ratchet(["run", "folds.py"]) == 0
    assert command.ratchet(["run", "folds.py", "--set", "depth=5"]) == 0
    assert re.search(r"^  accuracy 0\.\d+$", capsys.readouterr().out, re.MULTILINE)
    assert len([*tmp_path.glob("runs/folds/folds-scores/*/COMPLETE.json")]) == 2


def test_the_figure_is_the_one_of_the_kept_study_and_its_verdict_too():
    """After a change of what a report says: `python -m tests.docs.pictures answer`."""
    drawn, kept = pictures.answer(), (pictures.PICTURES / "answer.svg").read_text()
    texts = [re.findall(r'aria-label="[^"]*"|<text[^>]*>[^<]*', svg) for svg in (drawn, kept)]
    assert texts[0] == texts[1] and len(texts[0]) > 8
    assert f"*{pictures.document_of('robustness-quick').verdict}*" in README


def test_the_terminal_that_is_shown_is_of_this_study():
    shown = re.sub(r"<[^>]+>", "", (pictures.PICTURES / "going-on.svg").read_text()).replace("&#160;", " ")
    said = ["$ ratchet run folds.py", "Killed", "$ ratchet run folds.py", "folds are kept", "accuracy 0."]
    assert re.search(".*".join(map(re.escape, said)), shown, re.DOTALL)


def test_it_is_short():
    assert len(README.splitlines()) <= 90 and len(README.split()) <= 900
