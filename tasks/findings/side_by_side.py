"""report: arms of a study of one's own side by side, and which of their differences the folds or seeds show."""

from collections.abc import Mapping
from dataclasses import replace

from storage.errors import BadInput
from tasks.findings.arms import arms_figure
from tasks.findings.compare import Compared, as_csv, comparable, compare
from tasks.findings.configuration import ArmsConfig, Metric, role_of
from tasks.findings.document import Document, Section
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import Arms, arm_mean
from tasks.findings.table import Table
from tasks.stage.run import StageInput, StageRun

Every = Mapping[str, Mapping[str, float | None]]
"""Arm -> fold or seed -> its number; None where it diverged."""


def report(run: StageRun, config: ArmsConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads. BadInput for a metric that a result lacks, or has twice; one that is None has
    diverged, and is told."""
    require_verified(inputs)
    every: dict[str, dict[str, float | None]] = {arm: {} for arm in config.arms}
    directions: set[bool | None] = set()
    for arm, of_arm in config.arms.items():
        for value in of_arm:
            number, higher = config.number_of(inputs[role_of(arm, config.varied, value)])
            every[arm][value] = number
            directions.add(higher)
    if config.higher_is_better is None and len(directions - {None}) > 1:
        raise BadInput(
            f"the arms' trainings disagree on whether a higher {config.metric} is better: say higher_is_better"
        )
    higher = config.higher_is_better if config.higher_is_better is not None else (directions - {None} or {None}).pop()
    arms = {arm: {value: each for value, each in row.items() if each is not None} for arm, row in every.items()}
    metric = Metric(higher=higher, pairs=[[*pair] for pair in config.pairs])
    judged = comparable({arm: arms[arm] for pair in config.pairs for arm in pair})
    title = config.metric.replace("_", " ")
    level, varied = config.confidence_level, config.varied
    compared = compare({title: judged}, {title: metric}, level, may_equal=True, varied=varied)
    numbers = {
        config.metric: {arm: arm_mean(of_arm, config.confidence_level).mean for arm, of_arm in arms.items() if of_arm},
        "metrics": {config.metric: metric.model_dump()},
        "higher_is_better": higher,
        "values": [{"arm": arm, **row} for arm, row in every.items()],
        "differences": [row.as_json() for row in compared.rows],
    }
    document = _document(run, config, inputs, every, arms, compared)
    several = {arm: of_arm for arm, of_arm in arms.items() if len(every[arm]) > 1}  # of one nothing can be compared
    table = {"compared.csv": as_csv({config.metric: several}, config.varied)}
    return publish_report(run, inputs, numbers, document, texts=table)


def _diverged(every: Every, compared: Compared, config: ArmsConfig) -> list[str]:
    """What has no number, and what that costs."""
    lost = {arm: [value for value, number in row.items() if number is None] for arm, row in every.items()}
    names = ", ".join(f"{arm} ({config.varied} {', '.join(values)})" for arm, values in lost.items() if values)
    (kept,) = compared.values.values()
    without = dict.fromkeys(arm for pair in config.pairs for arm in pair if arm not in kept)
    listing = {
        f"**Diverged, without a {config.metric}: {names}.** Such a {config.varied} is left out of every arm that is "
        "compared, which spares the one that diverged.": names,
        f"**Not comparable: {', '.join(without)}**, of which too few are left.": without,
    }
    return [text for text, holds in listing.items() if holds]


def _document(
    run: StageRun, config: ArmsConfig, inputs: Mapping[str, StageInput], every: Every, values: Arms, compared: Compared
) -> Document:
    metric, diverged = config.metric.replace("_", " "), _diverged(every, compared, config)
    arms = {name: arm_mean(of_arm, config.confidence_level) for name, of_arm in values.items() if of_arm}
    rows = [
        [
            arm,
            value,
            "diverged" if number is None else f"{number:.6g}",
            inputs[role_of(arm, config.varied, value)].path.name,
        ]
        for arm, of_arm in every.items()
        for value, number in of_arm.items()
    ]
    limits = [*diverged, *compared.not_shown]
    if config.varied != "seed":
        limits.append(
            f"Each {config.varied} counts as a repetition of its own: where they share examples, intervals are too "
            "narrow."
        )
    lost = {arm: "diverged" for arm, row in every.items() if None in row.values()}
    figure = arms_figure("arms", metric, values, arms, lost)
    shown = compared.shown(metric) if compared.first else "Nothing can be compared"
    verdict = f"{shown[0].upper()}{shown[1:]}."
    if diverged:
        verdict += (
            f" {sum(number is None for row in every.values() for number in row.values())} of {len(rows)} runs diverged."
        )
    return Document(
        config.question or f"{run.run.study}: {metric} of {', '.join(values)}",
        verdict,
        numbers=compared.numbers,
        answer=compared.figure,
        not_shown=limits,
        sections=[
            Section(
                "The arms",
                figures=[replace(figure, caption=compared.called(figure.caption))],
                tables=[compared.mean_table(arms, metric), *compared.table(metric)],
            ),
            Section("The runs", tables=[Table(f"Every {metric}.", ["arm", config.varied, metric, "run"], rows)]),
        ],
    )
