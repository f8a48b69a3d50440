"""How often a run went on after a kill or a stop, and whether anything shows that its bytes are as without it.

Each attempt that goes on notes in its record by which way, and what nothing shows; `ratchet rehearse` keeps its answers
beside the runs of the study, by the digest of the code of a stage and of the files that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage import attempts, durable
from storage.run_directory import RunDirectory, read

REHEARSED = "rehearsed.json"


def exactness(run: RunDirectory) -> str:
    """What is to be known of a run that went on, in words; empty where tests show that its way goes on exactly."""
    went_on = [
        record["went_on"] for record in attempts.records(run.attempts) if isinstance(record.get("went_on"), dict)
    ]
    ways = {way: why for record in went_on for way, why in record.items()}
    if not any(ways.values()):
        return ""
    continued = f"continued {len(went_on)} time{'s' * (len(went_on) != 1)}"
    answer = _answer(run)
    if answer == "":
        return f"{continued}; a rehearsal of its code went on as an undisturbed one"
    reasons = "; ".join(f"{way}: {why}" for way, why in ways.items() if why)
    if answer:
        return f"{continued}; its rehearsal DIFFERED in {answer}: not shown to be exact, mend what it runs"
    shown = f"not shown to be exact ({reasons})"
    page = read(run.study_file).get("page", "STUDY")
    return f"{continued}; {shown}: ratchet rehearse {str(page).removeprefix('flows.')}"


def keep_answer(run: RunDirectory, root: Path, answer: str, small: Sequence[str]) -> None:
    """Keeps for the runs of a study in `root` in which bytes a rehearsal of their code differed (empty: in none).

    It holds for settings that differ in the keys `small` alone.
    """
    file = rehearsals(RunDirectory(root, run.study, run.stage, run.fingerprint))
    file.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in _settings(run).items() if key not in small}
    others = [one for one in read(file).get(code_of(run), []) if one["settings"] != settings]
    durable.write_json(file, read(file) | {code_of(run): [*others, {"settings": settings, "answer": answer}]})


def _answer(run: RunDirectory) -> str | None:
    settings = _settings(run)
    kept = read(rehearsals(run)).get(code_of(run), [])
    alike = [one["answer"] for one in kept if all(settings.get(key) == value for key, value in one["settings"].items())]
    return max(alike, default=None)  # one that differed before one that did not


def _settings(run: RunDirectory) -> dict[str, Any]:
    return read(run.stage_file).get("scientific", {})


def rehearsals(run: RunDirectory) -> Path:
    return run.root / run.study / REHEARSED


def code_of(run: RunDirectory) -> str:
    """The digest of a stage's code, and of the files that it names, such as a script."""
    about: dict[str, Any] = read(run.stage_file)
    record = attempts.newest(run.attempts) or {}
    source = record.get("source") or {}
    code = source.get("own_digest") or [about.get("work"), about.get("version")]
    return durable.sha256_json([about.get("stage"), code, about.get("external")])
