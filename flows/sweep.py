"""The robustness study over several seeds: `ratchet sweep robustness --over seed=42,1337,2024`.

python -m flows.sweep --profile quick --seeds 42 1337 2024
"""

from __future__ import annotations

from flows import command

if __name__ == "__main__":
    raise SystemExit(command.main("flows.sweep"))
