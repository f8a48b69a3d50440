"""The runs that the docs quote: their results are kept, so that what is quoted is what the code says of them today.

    python -m tests.docs.quotes inversion-quick runs/inversion-quick/inversion-report/*/final_results.json

keeps a run under the study and profile that it is of. Then its lines can be quoted in the docs.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

QUOTED = Path(__file__).with_name("quoted")


def keep(name: str, file: Path) -> None:
    results = json.loads(file.read_text()) | {"provenance": {}}  # of which no line of a table tells
    (QUOTED / f"{name}.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")


def table_of(name: str) -> str:
    """`table.md` of a kept run, made anew."""
    study = name.partition("-")[0]
    results = importlib.import_module(f"tasks.{study}.final_results").FinalResults
    tables = importlib.import_module(f"tasks.{study}.tables").tables
    made: str = tables(results.read_file(QUOTED / f"{name}.json"))
    return made


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]))
