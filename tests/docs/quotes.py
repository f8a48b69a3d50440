"""Finished runs that the docs quote: their results are kept, so what is quoted is what the code says of them today.

    python -m tests.docs.quotes inversion-quick runs/inversion-quick/inversion-report/*/final_results.json

keeps a run under the study and profile that it is of. Then its lines can be quoted in the docs. Without arguments

    python -m tests.docs.quotes

writes the table of every kept run anew, after a change of what a report says.
"""

import importlib
import json
import sys
from pathlib import Path

from tasks.findings.document import Document

QUOTED = Path(__file__).with_name("quoted")
RUNS = sorted(file.stem for file in QUOTED.glob("*.json"))


def keep(name: str, file: Path) -> None:
    results = json.loads(file.read_text()) | {"provenance": {}}  # of which no line of a table tells
    (QUOTED / f"{name}.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")
    keep_table(name)


def keep_table(name: str) -> None:
    (QUOTED / f"{name}.md").write_text(document_of(name).markdown())


def document_of(name: str) -> Document:
    """What the code says of a kept run today."""
    return document(name.partition("-")[0], QUOTED / f"{name}.json")


def document(study: str, final_results: Path) -> Document:
    """What the code says of a study's `final_results.json`: all but its figures, and where its numbers come from."""
    made = importlib.import_module(f"tasks.{study}.report")
    results = importlib.import_module(f"tasks.{study}.final_results").FinalResults.read_file(final_results)
    return made.document(results)


if __name__ == "__main__":
    if sys.argv[1:]:
        keep(sys.argv[1], Path(sys.argv[2]))
    else:
        for kept in RUNS:
            keep_table(kept)
