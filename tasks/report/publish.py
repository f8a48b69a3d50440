"""What a report reads is verified, and what it says is published with the digest of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from storage import durable, markers
from storage.errors import CheckFailed
from storage.lineage import Lineages
from tasks.stage.result import Result, as_json
from tasks.stage.run import StageInput, StageRun
from tasks.training.unlearned import unlearned


class Published(Result):
    """What a report is, by file name: Markdown files as `tables`, an HTML file as `report`; its answer, `headline`."""

    tables: list[str]
    figures: list[str] = Field(default_factory=list)
    report: str | None = None
    headline: str = ""
    final_results_digest: str


def require_verified(inputs: dict[str, StageInput]) -> None:
    """Hashes every output again: a report never trusts sizes and times.

    A marker that does not hold is taken away, so that the next start runs its stage again.
    """
    for stage, given in inputs.items():
        verdict = markers.check_outputs(given.run)
        if not verdict.holds or verdict.outputs_digest != given.outputs_digest:
            markers.withdraw(given.run)
            raise CheckFailed(
                f"the outputs of {stage} in {given.path} verify",
                verdict.reason or "other bytes than when this stage started",
                "all digests hold",
                "Start the same command again: that stage runs again",
            )


def publish(
    run: StageRun,
    results: Result | dict[str, Any],
    texts: Mapping[str, str],
    figures: Mapping[str, str] | None = None,
    headline: str = "",
) -> Published:
    """Writes `final_results.json`, the `texts` by file name and `figures/<name>.svg`.

    Returns the stage's result, which names them. `headline` is the answer in one line, for a list of studies. A table
    of a study of one's own, whose `results` are a dictionary, ends with the trainings that learned nothing, if any.
    Raises ValueError for two HTML files.
    """
    numbers = as_json(results)
    if isinstance(results, dict) and (nothing := unlearned(Lineages().of(run.run).runs())):
        texts = {name: f"{text}\n**{nothing}.**\n" if name.endswith(".md") else text for name, text in texts.items()}
    with run.publish_file("final_results.json") as file:
        durable.write_json(file, numbers)
    for name, text in texts.items():
        with run.publish_file(name) as file:
            file.write_text(text, encoding="utf-8")
    if figures:
        with run.publish("figures") as folder:
            for name, svg in figures.items():
                durable.write_bytes(folder / f"{name}.svg", svg.encode())
    reports = [name for name in texts if name.endswith(".html")]
    if len(reports) > 1:
        raise ValueError(f"one report is shown, and these are too many: {', '.join(reports)}")
    return Published(
        tables=[name for name in texts if name.endswith(".md")],
        figures=[f"figures/{name}.svg" for name in figures or {}],
        report=reports[0] if reports else None,
        headline=headline,
        final_results_digest=durable.sha256_json(numbers),
    )
