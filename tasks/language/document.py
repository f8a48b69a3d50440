"""One text of a study, and where it comes from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One text and where it comes from; everything with the same source falls into the same split."""

    source: str
    text: str

    @property
    def example_id(self) -> str:
        """sha256 of the UTF-8 text, in hexadecimal: names the example in every record."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def document(source: str | None, text: str) -> Document:
    """A document whose text can be written as UTF-8; without a source it is its own source, by its content.

    Lone surrogates, which Python and JSON escapes can spell and UTF-8 cannot, become question marks.
    """
    text = text.encode("utf-8", "replace").decode()
    return Document(hashlib.sha256(text.encode()).hexdigest() if source is None else source, text)
