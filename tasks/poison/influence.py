"""poison-factors and poison-scores: what each training row does for what is asked, of the victim and of the untrained
model with which it began, beside scores that need no influence."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from storage.records import Rows
from tasks.influence import kept
from tasks.influence.factors import compute_factors
from tasks.influence.plan import Limits, ModulePlan, Plan, factor_plan, markdown, this_machine
from tasks.influence.scores import gathered, tracin
from tasks.influence.scores import scores as influence
from tasks.influence.task import Task, token_losses
from tasks.language.classifiers import Classifier, kept_classifier, states_of
from tasks.poison.detect import clustering, overlap, spectral
from tasks.poison.fit import numbers_of
from tasks.poison.manifest import CLEAN, VERSION, Manifest, Texts, queries_of, texts_of
from tasks.poison.stages import MODELS, FactorsConfig, FitResult, ScoresConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

Columns = Mapping[str, torch.Tensor | np.ndarray]
"""Method -> score of each training row, [N]."""


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
) -> dict[str, float]:
    """Publishes `plan.md`, before anything is computed, and `factors/`, module by module: a kill costs one of them."""
    manifest, where = Manifest.read(data.path), device(config.execution)
    model = kept_classifier(victim.path / config.folder).to(where)
    train, batch = task_of(model, texts_of(manifest.train)), config.execution.micro_batch_examples
    longest = train.batch(np.arange(1))[0].shape[1]  # to which all are padded
    limits = Limits(config.factors.strategy, 30.0, model.kinds, model.excluded, batch, longest)
    plan = factor_plan(model, this_machine(where), limits)
    with run.publish_file("plan.md") as file:
        file.write_text(markdown(plan), encoding="utf-8")
    folder, every = run.directory / "factors", np.arange(train.size)
    found = compute_factors(train, every, folder, plan, seed=config.seed, batch=batch, anew=True, told=run.step)
    run.outputs.append("factors")
    kept.require_usable(found, config.factors.max_degraded_share)
    return {}


def scores(
    run: StageRun, config: ScoresConfig, data: StageInput, victim: StageInput, **of: StageInput
) -> dict[str, float]:
    """Records: the score of each training row by model and method; higher is more suspicious. Each part, one pass over
    the rows for all kinds of queries, is durable as it is done. `of` are the factors of the models."""
    manifest, where, batch = Manifest.read(data.path), device(config.execution), config.execution.micro_batch_examples
    how, strategy, plain = config.queries, config.factors.strategy, ("", CLEAN)
    queries = queries_of(manifest, config.poison.trigger, how.rows, how.transforms, config.seed)
    rows, every = texts_of(manifest.train), np.arange(len(manifest.train))
    factors_of = {model: of[f"{model}_factors"].path / "factors" for model in MODELS}

    def tasks(folder: str, kinds: Sequence[str]) -> tuple[Task, Task, list[np.ndarray]]:
        """The rows, the queries of all kinds, and which of these are of each kind."""
        classifier = kept_classifier(victim.path / folder).to(where)
        texts, labels = ([text for kind in kinds for text in queries[kind][side]] for side in (0, 1))
        ends = np.cumsum([len(queries[kind][0]) for kind in kinds])
        return task_of(classifier, rows), task_of(classifier, (texts, labels)), np.split(np.arange(ends[-1]), ends[:-1])

    def plan_of(model: str) -> list[ModulePlan]:
        return kept.complete(factors_of[model], kept_classifier(victim.path / MODELS[model]))[0]

    def by_influence(model: str, method: str, kinds: Sequence[str], factors: Path | Plan) -> dict[str, torch.Tensor]:
        train, asked, groups = tasks(MODELS[model], kinds)
        told = partial(run.step, note=f"{model}, {method}")
        blocks = influence(train, asked, every, groups, factors, damping=how.damping, batch=batch, told=told)
        return dict(zip((f"{method}{kind}" for kind in kinds), gathered(blocks), strict=True))

    def by_curvature(model: str) -> Columns:
        columns = by_influence(model, strategy, [*queries], factors_of[model])
        changes = torch.stack([of for method, of in columns.items() if VERSION in method]).std(0)
        return columns | {f"{strategy}-variance": -changes}  # poison changes less, it is said

    def without_curvature(model: str) -> Columns:
        return by_influence(model, "identity", plain, plan_of(model))

    def by_states(model: str) -> Columns:
        classifier = kept_classifier(victim.path / MODELS[model]).to(where)
        ids, labels = (of.to(where) for of in numbers_of(classifier, rows))
        (hidden, losses), of = states_of(classifier, ids, labels, batch), labels.cpu().numpy()
        return {"loss": -losses, "spectral": spectral(hidden, of), "clustering": clustering(hidden, of)}

    def by_steps(model: str) -> Columns:
        groups, steps = tasks(MODELS[model], plain)[-1], FitResult.read(victim).snapshots
        checkpoints = ((*tasks(folder, plain)[:2], rate) for folder, rate in steps.items())
        found = tracin(checkpoints, every, groups, plan_of(model), batch, partial(run.step, note="TracIn"))
        return {f"tracin{kind}": of_kind for kind, of_kind in zip(plain, found, strict=True)}

    def records(part: tuple[str, Callable[[str], Columns]]) -> Rows:
        model, make = part
        return [
            {"row_id": row["row_id"], "model": model, "method": method, "score": score}
            for method, scores in make(model).items()
            for row, score in zip(manifest.train, np.asarray(scores, float).tolist(), strict=True)
        ]

    makers = {"curvature": by_curvature, "identity": without_curvature, "states": by_states}
    parts = {f"{model}-{name}": (model, make) for model in MODELS for name, make in makers.items()}
    by_words = {f"overlap{kind}": overlap(rows[0], queries[kind][0]) for kind in plain}
    parts |= {"victim-tracin": ("victim", by_steps), "none-overlap": ("none", lambda model: by_words)}
    run.merge_records(run.each(parts, records, "kinds of scores"), ("row_id", "model", "method"))
    return {}
