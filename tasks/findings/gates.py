"""The gates of science before a report: data, run by one function, and shown in the report as a table."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from storage.errors import CheckFailed
from tasks.findings.audit import AuditResult
from tasks.findings.table import Table
from tasks.stage.result import Result


class Gate(Result):
    """What was measured, and what is required before any number is shown."""

    name: str
    measured: str
    required: str
    passed: bool


def at_most(name: str, measured: float, limit: float) -> Gate:
    """A limit; a value that is no number does not pass."""
    return Gate(name=name, measured=f"{measured:.4g}", required=f"at most {limit:.4g}", passed=measured <= limit)


def same(name: str, values: Mapping[str, Hashable]) -> Gate:
    """Values that must all be equal; the first that is another one than the first of all is named."""
    (first, value), *others = values.items()
    other = next((f"{key} {own}, {first} {value}" for key, own in others if own != value), "")
    return Gate(name=name, measured=other or f"{value}", required="the same", passed=not other)


def distinct(name: str, values: Mapping[str, Hashable]) -> Gate:
    """Values that must all differ; the first two that are equal are named."""
    first: dict[Hashable, str] = {}
    pairs = ((first.setdefault(value, key), key) for key, value in values.items())
    equal = next((f"those of {other} and {key} are equal" for other, key in pairs if other != key), "")
    return Gate(name=name, measured=equal or f"{len(values)} that differ", required="all different", passed=not equal)


def require_gates(gates: Iterable[Gate]) -> list[Gate]:
    """All gates, which hold; CheckFailed names the first that does not."""
    gates = list(gates)
    for gate in gates:
        if not gate.passed:
            raise CheckFailed(gate.name, gate.measured, gate.required)
    return gates


def checks(gates: Sequence[Gate], audit: AuditResult) -> dict[str, Table | None]:
    """The tables of what a report was asked before it was published."""
    table = Table(
        "What had to hold before any number was shown; else the study would have ended here.",
        ["gate", "measured", "required"],
        [[gate.name, gate.measured, gate.required] for gate in gates],
    )
    return {"gates": table if gates else None, "audit": audit.table}
