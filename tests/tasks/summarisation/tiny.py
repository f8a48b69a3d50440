"""The summarisation study in seconds, on made-up pairs, finished once in a test run."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.tasks.smoke import Smoke
from tests.tasks.tiny import sentences


@cache
def pairs_file() -> Path:
    """JSON lines of 200 pairs: a summary is the first words of its article, in another order."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-pairs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rows = [{"document": text, "summary": " ".join(sorted(text.split()[:6]))} for text in sentences(200)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "pairs.jsonl"


class OnMadeUpPairs(Smoke):
    """The smoke profile without the minutes of reading docstrings."""

    def study(self, *changes: str) -> Any:
        text = json.dumps({"source": "files", "paths": [str(pairs_file())]})
        return super().study(f"text={text}", "splits.evaluation_share=0.1", "model.vocabulary_size=400", *changes)


SMOKE = OnMadeUpPairs("summarisation")
finished = SMOKE.finished
