"""What aggregate reads, taken from the tiny study that ran, edited, and sealed again: see `tests.tasks.resealed`."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tasks.attacks.stages import JUDGED
from tasks.findings.audit import AuditResult
from tasks.findings.publish import Published
from tasks.robustness.aggregate import aggregate
from tasks.robustness.audit import audit
from tasks.robustness.final_results import FinalResults
from tasks.robustness.stages import AggregateConfig, AuditConfig
from tasks.robustness.study import Study
from tasks.stage.run import StageInput
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tests.tasks import resealed
from tests.tasks.resealed import Change, Stages, unchanged
from tests.tasks.tiny import finished_study, stage_run


@cache
def _contents() -> Stages:
    return resealed.contents(finished_study().handles["aggregate"].inputs)


def as_measured() -> Stages:
    """A copy to edit."""
    return copy.deepcopy(_contents())


def contents() -> Stages:
    """The same, in which the sublayers of the arms live: those of the tiny study learn nothing."""
    found = as_measured()
    for arm in finished_study().study.arms:
        set_rise(found, arm, 1.0)
    return found


def set_rise(stages: Stages, arm: str, nats: float) -> None:
    """What the replacement of an arm's sublayers by their means costs."""
    live = stages[arm]["result"]["sublayers"]
    live["loss_with_means_nats_per_token"] = live["loss_nats_per_token"] + nats


def keep_consistent(stages: Stages, attack: str) -> None:
    """What else says the attacked losses of a model: shares of its search, blind search below it, and transfer."""
    for role, stage in stages.items():
        for row in stage["rows"] if role.startswith(f"{attack}-") else []:
            row["budget_losses_sum_nats"] = [row["loss_sum_nats"]] * 3
            row["blind_loss_sum_nats"] = row["loss_sum_nats"] - 0.01 * row["tokens_scored"]
    transfer_again(stages, attack)


def transfer_again(stages: Stages, attack: str) -> None:
    """Whatever was found for any model does to a model what its own search, or blind search, does: as edited."""
    own = {
        (row["model"], row["example_id"]): row
        for role, stage in stages.items()
        if role.startswith(f"{attack}-")
        for row in stage["rows"]
    }
    rows = stages["transfer"]["rows"]
    for row in rows:
        if (row["attack"].split(",")[0], row["split"]) == (attack, JUDGED):  # of every restart
            theirs = own[row["model"], row["example_id"]]
            row |= {name: theirs[name] for name in ("clean_loss_sum_nats", "text_clean_loss_sum_nats")}
            row["loss_sum_nats"] = theirs["loss_sum_nats" if row["search"] == "gradient" else "blind_loss_sum_nats"]
    if attack == "hotflip":
        searched_again(stages)


def searched_again(stages: Stages) -> None:
    """The search for flips saw what was judged: all was found in its first round."""
    for role, stage in stages.items():
        if role.startswith("hotflip-"):
            for row in stage["rows"]:
                saw = row["search_losses_sum_nats"]
                saw[:] = [row["clean_loss_sum_nats"], *[row["loss_sum_nats"]] * (len(saw) - 1)]
                row["budget_losses_sum_nats"] = [row["loss_sum_nats"]] * 3


def train_with(stages: Stages, arm: str, budget: Budget, blocks: int) -> None:
    """An arm that was trained with another budget, by its configuration and by the rows that it wrote."""
    schedule, rows = Schedule(budget, blocks), stages[arm]["metrics"]
    rows.append({"step": schedule.total_steps, "train_loss": 1.0, "learning_rate": 0.0})
    for row in rows:
        row |= {"learning_rate": schedule.learning_rate(row["step"])} if "learning_rate" in row else {}
    stages[arm]["described"]["configuration"]["budget"] = budget.model_dump(mode="json")


def written(folder: Path, stages: Stages, change: Change = unchanged) -> dict[str, StageInput]:
    """Role -> finished stage, below `folder`/runs, as `stages` says and sealed again."""
    return resealed.written(finished_study().handles["aggregate"].inputs, folder, stages, change)


def audited(folder: Path, inputs: dict[str, StageInput], configured: Study, entropy: int = 0) -> AuditResult:
    """What the audit says of these inputs of aggregate."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {role: inputs[role] for role in finished_study().handles["audit"].inputs}
    run = stage_run(folder)
    run.identity = {"entropy": entropy}
    return audit(run, AuditConfig.of(configured), **given)


def aggregated(folder: Path, inputs: dict[str, StageInput], configured: Study) -> tuple[Published, Path]:
    """The result of aggregate on these inputs, and the directory that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    run = stage_run(folder)
    run.run = replace(run.run, root=next(iter(inputs.values())).run.root)  # runs are named relative to their own root
    return aggregate(run, AggregateConfig.of(configured), **inputs), run.directory


def typed(numbers: dict[str, Any]) -> FinalResults:
    """`final_results.json` as the tables and sentences take it."""
    return FinalResults.model_validate(numbers)
