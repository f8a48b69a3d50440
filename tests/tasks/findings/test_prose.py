"""A `report.md` becomes the document that its numbers and pieces make, and nothing that a value holds becomes prose."""

import pytest

from tasks.findings.document import Document, Figure, Section
from tasks.findings.prose import fill
from tasks.findings.table import Table
from tasks.inversion.final_results import FinalResults
from tests.docs.quotes import QUOTED

TEXT = """# {{ results.study }}

**{{ answer }}**

A sentence
in two lines.

- 1 of 2

![answer]

Not shown, and to keep in mind:
{{ lacking | points }}

Why?

- A fact,
  and its end.

## Losses

{{ answer }}

{% for name in lacking %}
- {{ name }}
{% endfor %}

![losses]
![none]

## What was checked

![gates]
![audit]
"""
LOSSES, ANSWER = Table("Losses.", ["arm", "loss"], [["a", "1"]]), Figure("answer", "<svg></svg>", "The answer.")
RESULTS = FinalResults.read_file(QUOTED / "inversion-quick.json")


def filled(tmp_path, text=TEXT, **values):
    (tmp_path / "report.md").write_text(text)
    pieces = {"answer": ANSWER, "losses": LOSSES, "none": None}
    return fill(tmp_path / "report.md", RESULTS, pieces, **{"answer": "Yes.", "lacking": ["b", "c"]} | values)


def test_a_template_is_read_as_the_document_that_it_writes(tmp_path):
    document = filled(tmp_path)
    checked = Section("What was checked", tables=document.sections[1].tables)
    losses = Section("Losses", ["Yes."], ["b", "c"], tables=[LOSSES])
    facts = ["A fact, and its end."]
    written = Document(
        "inversion-quick", "Yes.", "A sentence in two lines.", ["1 of 2"], ANSWER, ["b", "c"], "Why?", facts,
        [losses, checked],
    )  # fmt: skip
    assert document.markdown() == written.markdown() and document.answer is ANSWER
    assert filled(tmp_path, lacking=[]).not_shown == [] and filled(tmp_path, lacking=[]).question == "Why?"


def test_a_value_with_lines_of_its_own_begins_no_list_and_no_section(tmp_path):
    hostile = "x\n\n## Forged\n\n- all learned\n![losses]"
    document = filled(tmp_path, answer=hostile, lacking=[hostile])
    assert [section.title for section in document.sections] == ["Losses", "What was checked"]
    assert document.verdict == document.not_shown[0] == "x ## Forged - all learned ![losses]"
    assert document.sections[0].points == document.not_shown


@pytest.mark.parametrize(
    ("old", "new"), [("![losses]", "![loses]"), ("![losses]\n", ""), ("{{ answer }}", "{{ anser }}")]
)
def test_a_misspelt_name_and_a_piece_without_a_place_are_errors(tmp_path, old, new):
    with pytest.raises(Exception, match=r"lose|losses|anser"):
        filled(tmp_path, TEXT.replace(old, new))
