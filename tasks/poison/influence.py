"""poison-factors and poison-scores: what each training row does for what is asked, of the victim and of the untrained
model with which it began, beside scores that need no influence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tasks.attacks.detectors import clustering, overlap, spectral
from tasks.attacks.poisoning import CLEAN, VERSION, Manifest, Texts, queries_of, texts_of
from tasks.influence import kept
from tasks.influence.factors import compute_factors
from tasks.influence.plan import Limits, factor_plan, markdown, this_machine
from tasks.influence.scores import Block, gathered, tracin
from tasks.influence.scores import scores as influence
from tasks.influence.task import Task, token_losses
from tasks.language.classifiers import Classifier, kept_classifier
from tasks.poison.fit import numbers_of
from tasks.poison.results import FactorsResult, FitResult, ScoresResult
from tasks.poison.stages import MODELS, FactorsConfig, ScoresConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun


def task_of(model: Classifier, texts: Texts) -> Task:
    """The texts as influence asks for them, on the device of the model."""
    ids, labels = (values.to(model.last.weight.device) for values in numbers_of(model, texts))
    return Task(
        model,
        len(ids),
        batch=lambda indices: (ids[torch.from_numpy(indices)], labels[torch.from_numpy(indices)]),
        losses=lambda network, batch, generator: token_losses(network(batch[0]), batch[1], generator),
        positions=lambda batch, module: model.real(batch[0], module),
    )


def factors(
    run: StageRun, config: FactorsConfig, data: StageInput, victim: StageInput, attack: StageInput
) -> FactorsResult:
    """Publishes `plan.md`, before anything is computed, and `factors/`, module by module: a kill costs one of them."""
    manifest, where = Manifest.read(data.path), device(config.execution)
    model = kept_classifier(victim.path / config.folder).to(where)
    limits = Limits(strategy=config.factors.strategy, kinds=model.kinds, exclude=model.excluded)
    plan = factor_plan(model, this_machine(where), limits)
    with run.publish_file("plan.md") as file:
        file.write_text(markdown(plan), encoding="utf-8")

    def told(what: str, done: int, of: int) -> None:
        run.lock.check()
        run.stop.check()
        run.progress.update(done, of, what)

    train, batch = task_of(model, texts_of(manifest.train)), config.execution.micro_batch_examples
    folder, every = run.directory / "factors", np.arange(train.size)
    found = compute_factors(train, every, folder, plan, seed=config.seed, batch=batch, anew=True, told=told)
    run.outputs.append("factors")
    kept.require_usable(found, config.factors.max_degraded_share)
    rungs = {one.name: [f"{side['module']}: {rung}" for side in one.sides for rung in side["rungs"]] for one in found}
    modules = [
        {key: getattr(one, key) for key in ("name", "status", "examples")} | {"rungs": rungs[one.name]} for one in found
    ]
    return FactorsResult(modules=modules, degraded=kept.degraded(found))


def scores(run: StageRun, config: ScoresConfig, data: StageInput, victim: StageInput, **of: StageInput) -> ScoresResult:
    """Records: the scores of each training row, a column `<model>.<method>` each; higher is more suspicious.

    `of` are the factors of the victim as it was trained, and as it began.
    """
    manifest, where, batch = Manifest.read(data.path), device(config.execution), config.execution.micro_batch_examples
    how, strategy = config.queries, config.factors.strategy
    queries = queries_of(manifest, config.poison.trigger, how.rows, how.transforms, config.seed)
    every, given = np.arange(len(manifest.train)), texts_of(manifest.train)
    asked = {end: np.arange(len(texts[0])) for end, texts in queries.items()}
    columns = dict[str, torch.Tensor | np.ndarray]()

    def tasks(folder: str, end: str) -> tuple[Task, Task]:
        model = kept_classifier(victim.path / folder).to(where)
        return task_of(model, given), task_of(model, queries[end])

    def mean_of(blocks: Iterator[Block], what: str) -> torch.Tensor:
        return gathered(watched(run, blocks, len(every), what)).mean(0)

    for name, folder in MODELS.items():
        found, versions = of[f"{name}_factors"].path / "factors", []
        for end in queries:
            both = train, _ = tasks(folder, end)
            plan, _ = kept.complete(found, train.model)
            blocks = influence(*both, every, asked[end], found, damping=config.queries.damping, batch=batch)
            columns[f"{name}.{strategy}{end}"] = mean = mean_of(blocks, f"{name}, {strategy}{end}")
            if VERSION in end:
                versions.append(mean)
            else:
                plain = influence(*both, every, asked[end], plan, batch=batch)
                columns[f"{name}.identity{end}"] = mean_of(plain, f"{name}, identity{end}")
        columns[f"{name}.{strategy}-variance"] = -torch.stack(versions).std(0)  # poison changes less, it is said
        with torch.no_grad():
            ids, labels = train.batch(every)
            states = torch.cat([train.model.hidden(some) for some in ids.split(batch)])
            columns[f"{name}.loss"] = -token_losses(train.model.last(states), labels).cpu()  # backdoors are easy
            hidden, numbers = states.double().cpu().numpy(), labels.cpu().numpy()
        columns |= {f"{name}.spectral": spectral(hidden, numbers), f"{name}.clustering": clustering(hidden, numbers)}
    rates = FitResult.read(victim).snapshots
    for end in ("", CLEAN):
        checkpoints = ((*tasks(folder, end), rate) for folder, rate in rates.items())
        columns[f"victim.tracin{end}"] = tracin(checkpoints, every, asked[end], plan, batch).mean(0)
        columns[f"none.overlap{end}"] = overlap(given[0], queries[end][0])
    of_rows = zip(*(np.asarray(column, float).tolist() for column in columns.values()), strict=True)
    rows = [
        {"row_id": row["row_id"], **dict(zip(columns, values, strict=True))}
        for row, values in zip(manifest.train, of_rows, strict=True)
    ]
    digest = run.merge_records(run.each([rows], list, "rows"), ("row_id",))
    return ScoresResult(records_digest=digest)


def watched(run: StageRun, blocks: Iterator[Block], rows: int, what: str) -> Iterator[Block]:
    """The blocks, with progress; a stop is heeded between two."""
    for block in blocks:
        run.lock.check()
        run.stop.check()
        run.progress.update(int(block[1].max()) + 1, rows, what)
        yield block
