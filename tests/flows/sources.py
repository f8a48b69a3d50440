"""Writes `sources.json` anew after stages' sources or versions changed; a person says what that means for results.

python -m tests.flows.sources "why"
"""

import json
import sys

from tests.flows.test_stage_versions import REGISTRY, STAGES, digests


def main(why: str) -> None:
    known = json.loads(REGISTRY.read_text())
    lines = []
    for name, digest in sorted(digests().items()):
        entry = [digest, STAGES[name].version, why]
        lines.append(
            f"  {json.dumps(name)}: {json.dumps(known[name] if known.get(name, [])[:2] == entry[:2] else entry)}"
        )
    REGISTRY.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
