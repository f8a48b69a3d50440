"""`python -m flows` is `ratchet`."""

from flows.command import ratchet

raise SystemExit(ratchet())
