"""Writes `sources.json` anew after stages' sources changed; a person says what that means for results.

    python -m tests.flows.sources "why" flows.robustness.UAT=3 ...    the raised versions; none: results are the same

Each changed module is given the raised versions of those stages that it is part of.
"""

import json
import sys

from tests.flows.test_stage_versions import REGISTRY, digests, stages_by_module


def main(why: str, *raised: str) -> None:
    entries = json.loads(REGISTRY.read_text())
    versions = {stage: int(version) for stage, _, version in (word.partition("=") for word in raised)}
    current = digests()
    for module, digest in current.items():
        history = entries.setdefault(module, [])
        if not history or history[-1][0] != digest:
            history.append(
                [digest, {stage: versions[stage] for stage in stages_by_module()[module] if stage in versions}, why]
            )
    kept = ((module, history) for module, history in sorted(entries.items()) if module in current)
    blocks = (
        f"  {json.dumps(module)}: [\n" + ",\n".join(f"    {json.dumps(entry)}" for entry in history) + "\n  ]"
        for module, history in kept
    )
    REGISTRY.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
