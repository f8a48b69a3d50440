"""What the docs quote of a study's output is what the code makes of the quoted run today."""

import pytest

from tests.docs import origins
from tests.docs.pages import PAGES
from tests.docs.quotes import QUOTED, RUNS, document_of

NOT_MADE_AGAIN = "not made again since"
"""A quote below a paragraph that says this is of the commit that it names."""


def quotes(text: str) -> list[str]:
    """Quoted lines, without those that a page says to be of an earlier commit."""
    blocks, before, found = text.split("\n\n"), "", []
    for block in blocks:
        if block.startswith("> "):
            found += [] if NOT_MADE_AGAIN in before else [line[2:] for line in block.splitlines() if line.strip(">")]
        else:
            before = block
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_report_says_what_it_said(name):
    """Whatever changes its words or its tables is seen here as a whole: `python -m tests.docs.quotes`, and git diff."""
    assert document_of(name).markdown() == (QUOTED / f"{name}.md").read_text()


@pytest.mark.parametrize("study", sorted({name.partition("-")[0] for name in RUNS}))
def test_every_quoted_line_of_a_study_is_what_the_code_prints_of_the_run(study):
    """Seen: docs/study-inversion.md quoted p .251 where the code printed .775 of the same run."""
    printed = {
        line for name in RUNS if name.startswith(f"{study}-") for line in document_of(name).markdown().splitlines()
    }
    shown = quotes(PAGES[f"docs/study-{study}.md"])
    assert shown and not [line for line in shown if line not in printed]


def test_the_list_of_what_audits_ask_is_that_of_the_studies():
    assert origins.with_listing(PAGES["docs/guarantees.md"]) == PAGES["docs/guarantees.md"]
