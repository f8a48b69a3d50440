"""The part of final_results.json that every study has, and the cautions that any report shows beside its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, JsonValue

from tasks.findings.audit import AuditResult, require_audited
from tasks.findings.gates import Gate, require_gates
from tasks.findings.provenance import Provenance, provenance, run_directories, run_name
from tasks.stage.numerics import is_within, within
from tasks.stage.result import Result
from tasks.stage.run import StageInput, StageRun
from tasks.training.trained import metric_rows


@dataclass(frozen=True)
class Origins:
    """Where each number of a study's final_results.json comes from, by patterns of names (`arms.*.mean`): from what it
    is computed in the report, which kind the audit asks again, or why nobody does. The longest pattern counts.

    A test holds every number against it, and docs/guarantees.md lists what is asked and what is not.
    """

    computed: Mapping[str, str]
    asked: Mapping[str, str]
    not_asked: Mapping[str, str]

    def __or__(self, other: Origins) -> Origins:
        return Origins(*({**patterns, **vars(other)[group]} for group, patterns in vars(self).items()))


class StudyResults(Result):
    """Every number of a report; a study adds its own.

    `runs` and `provenance` are by the name that the page gives a stage, `numerics_changes` (`changes_of`) of the stages
    in which something changed on the way.
    """

    study: str
    audit: AuditResult
    gates: list[Gate] = Field(default_factory=list)
    numerics_changes: dict[str, list[dict[str, JsonValue]]] = Field(default_factory=dict)
    runs: dict[str, str]
    provenance: dict[str, Provenance]

    def run_of(self, role: str) -> str:
        """Name of the run directory of a stage, with which a row of its numbers ends."""
        return run_name(self.runs[role])


def of_runs(
    run: StageRun, inputs: Mapping[str, StageInput], kinds: Mapping[str, float], gates: Iterable[Gate] = ()
) -> dict[str, Any]:
    """The fields of `StudyResults`. CheckFailed unless the audit computed numbers of all `kinds` (-> tolerance) again,
    and all `gates` hold."""
    return {
        "study": run.run.study,
        "audit": require_audited(inputs["audit"], kinds),
        "gates": require_gates(gates),
        "numerics_changes": {role: changes for role, stage in inputs.items() if (changes := changes_of(stage))},
        "runs": run_directories(inputs, run.run.root),
        "provenance": provenance(inputs),
    }


CHANGED_WITHIN = {
    "micro_batch_examples": "**Micro-batches of {stage} were halved where memory ended:** {told} on.",
    "compile": "**{stage} was not compiled as was asked:** {told} on.",
    "to_step": "**{stage} went back where its loss jumped, and on with a lower rate:** to step {told}.",
    "skipped": "**Batches of {stage} were skipped, whose losses or gradients are not finite:** examples {told}.",
}


def changes_of(stage: StageInput) -> list[dict[str, JsonValue]]:
    """What changed while a stage ran: its numerics, and what the guard of its training did."""
    rows = metric_rows(stage.run.metrics_file) if stage.run.metrics_file.exists() else []
    went_back, skipped = "went_back_from_step", "skipped_examples"
    return [
        *stage.numerics_changes,
        *({"from_step": row[went_back], "to_step": row["step"]} for row in rows if went_back in row),
        *({"from_step": row["step"], "skipped": row[skipped]} for row in rows if skipped in row),
    ]


def numerics_changed(stages: Mapping[str, list[dict[str, JsonValue]]]) -> list[str]:
    """The cautions that there were changes (`changes_of`) in these stages: between attempts, or within a training."""
    cautions = [
        sentence.format(stage=stage, told=", ".join(values))
        for key, sentence in CHANGED_WITHIN.items()
        for stage, changes in stages.items()
        if (values := within(changes, key))
    ]
    if other := [stage for stage, changes in stages.items() if not all(map(is_within, changes))]:
        cautions.append(
            f"**Numerics changed between attempts of {', '.join(other)}:** not the bytes of one undisturbed run."
        )
    return cautions


def numerics_differ(arms: Mapping[str, dict[str, JsonValue]]) -> list[str]:
    """The caution that arms (name -> numerics) ran on different numerics."""
    shared = set.intersection(*map(set, arms.values()))  # one that was begun earlier may list more
    values_of = {
        key: [str(numerics[key]) for numerics in arms.values()] for key in next(iter(arms.values())) if key in shared
    }
    differing = {key: values for key, values in values_of.items() if len(set(values)) > 1}
    if not differing:
        return []
    listing = ", ".join(f"{key} ({', '.join(values)})" for key, values in differing.items())
    return [f"**The arms ran on different numerics** ({', '.join(arms)}): {listing}."]
