"""`python -m flows` is `ratchet`."""

from __future__ import annotations

from flows.command import ratchet

raise SystemExit(ratchet())
