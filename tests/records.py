"""The definition of a records digest, in memory: what every streaming one is compared with."""

import hashlib
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from storage import durable


def plain_digest(rows: Iterable[dict[str, Any]], key_columns: Sequence[str] = ("model", "example_id")) -> str:
    digest = hashlib.sha256()
    for row in sorted(rows, key=itemgetter(*key_columns)):
        exact = {key: value.hex() if isinstance(value, float) else value for key, value in row.items()}
        digest.update(durable.canonical_json(exact) + b"\n")
    return digest.hexdigest()
