"""Names from data: what JSON, YAML, folders and scripts say of paths, patterns, attributes and code.

Anybody may have written them, so a `Name` is no text: only its methods turn it into something that can be used.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from storage.errors import BadInput
from storage.inside import inside
from storage.visible import visible

Value = TypeVar("Value")
FIELDS = {
    "path": (
        *("COMPLETE.json: outputs", "MANIFEST.json of an export", "checkpoints/*/manifest.json: files"),
        *("checkpoints/*/state.json: scratch", "checkpoints/*/state.json: link", "stage.json: fingerprint"),
        *("stage.json: inputs", "result.json: report", "result.json: tables", "attempts/*.json: attempt"),
        *("a profile: name", "*.index.json of a model: weight_map"),
    ),
    "attribute": ("checkpoints/*/state.json: bit_generator",),
    "code": ("stage.json: configuration_type", "stage.json: work", "study.json: page", "a script of --train-py"),
    "pattern": ("a folder of a run",),
}
"""What data name, by what becomes of it. A test feeds each field what leads elsewhere, and finds a use in no list."""


@dataclass(frozen=True)
class Name:
    """Equal to another one of the same text; neither a path nor a pattern can be made of it by itself."""

    given: object

    def path(self, folder: Path, is_folder: bool = False) -> Path:
        """The file (or folder) of this name in `folder`; `inside` says what it raises."""
        return inside(folder, self.given, is_folder)

    @property
    def pattern(self) -> str:
        """A pattern of `glob` that this name alone fits."""
        return glob.escape(str(self.given))

    @property
    def code(self) -> str:
        """A literal of Python in double quotes, on one line, without anything that cannot be seen."""
        return visible(json.dumps(self.given, ensure_ascii=False))

    def __str__(self) -> str:
        return self.code

    def of(self, table: Mapping[str, Value], what: str) -> Value:
        """What `table` has of this name; BadInput naming `what` it should be."""
        if not isinstance(self.given, str) or self.given not in table:
            raise BadInput(f"{self} is no {what}: one of {', '.join(table)} is")
        return table[self.given]
