"""calorimeter-look: what the light is like, the one normaliser of all models, and what needs no learning.
calorimeter-mae, calorimeter-inpaint and calorimeter-regress: one training each. calorimeter-export: each regressor
as an ONNX file, from photons to cm and MeV, held against its torch model."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from safetensors.torch import save_file

from storage import durable
from storage.errors import require_limit
from tasks.calorimeter import stages
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import FillConfig, FitResult, RegressConfig
from tasks.data.gate import require_inputs
from tasks.data.normaliser import Normaliser, Step
from tasks.data.statistics import column_statistics
from tasks.sensors.batches import Batch, Batches, fill_losses, target_losses
from tasks.sensors.networks import Filler, Physical, Regressor
from tasks.sensors.xenon import SENTINEL, Events
from tasks.stage.numerics import device
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageInput, StageRun
from tasks.training.initial import load_part
from tasks.training.invariance import batchwise, require_invariant
from tasks.training.loop import train_problem
from tasks.training.onnx_files import INSTALL, installed, traced, write
from tasks.training.problem import Problem, adamw
from tasks.training.schedule import Schedule

READING, CENTRAL, AT_ONCE = "light_photons", 0.68, 1000
RECORDED = Step(name=READING, offset=3.0, scale=4.08 / math.log(10), logarithm_of_plus=1000.0)
"""ln(1 + x / 1000) / 4.08."""
PRETRAINED, EVENTS_IN_A_PART, LOSS = "calorimeter-mae", 50, "validation_loss"
CHECKED, TOLERANCE = 16, 1e-3
"""On how many events a prediction must not depend on how they come, to within so much of what is normalised."""
FOLDER, EXPORTED_EVENTS, NEAR = "onnx", 100, 1e-3
"""Where the files lie, on how many events of validation they are checked, and how near they must be, in deviations of
the truth."""
INPUT, OUTPUT = "photons", "targets"
Start = StageInput | None
Losses = Callable[[torch.Tensor, Batch], torch.Tensor]


def look(run: StageRun, config: stages.LookConfig, data: StageInput) -> stages.LookResult:
    """Publishes `normaliser/`, of light and of what is to be found. CheckFailed where light is not fit to train on."""
    train, validation = Events.open(data, "train"), Events.open(data, "validation")
    parts = (train.light[first : first + AT_ONCE] for first in range(0, len(train), AT_ONCE))
    columns = column_statistics((light[light != SENTINEL][:, None] for light in parts), [READING])
    columns += column_statistics([np.array(train.truth)], TARGETS)
    normaliser = Normaliser(steps=[RECORDED, *Normaliser.measured(columns[1:]).steps])
    require_inputs(columns, normaliser, config.max_absolute_z)
    with run.publish("normaliser") as folder:
        normaliser.save(folder)
    trivial = residuals(validation.truth - np.array([column.mean for column in columns[1:]], dtype=np.float64))
    return stages.LookResult(columns=[column.as_json() for column in columns], trivial=trivial)


def normaliser_of(look: StageInput, raw: bool = False) -> Normaliser:
    """The published one; `raw`: with light as it is, which is another normaliser, with another digest."""
    steps = Normaliser.load(look.path / "normaliser").steps
    return Normaliser(steps=[*Normaliser.none([READING]).steps, *steps[1:]] if raw else steps)


def residuals(errors: np.ndarray) -> stages.Measures:
    """The central 68 % of |error| of each target, of errors [N, 4]."""
    return dict(zip(TARGETS, np.quantile(np.abs(errors), CENTRAL, axis=0).tolist(), strict=True))


def regress(run: StageRun, config: RegressConfig, data: StageInput, look: StageInput, start: Start = None) -> FitResult:
    """Publishes `model/`. Records: by how much each target of each event of validation is missed."""
    normaliser, where = normaliser_of(look, raw=config.arm == "raw"), device(config.execution)
    train, judged = (Batches(Events.open(data, split), normaliser, where) for split in ("train", "validation"))
    torch.manual_seed(config.seed)
    network, losses = Regressor(config.network, len(TARGETS)), partial(target_losses, beta=config.loss_beta)
    simple = (losses(0 * of.truth, of) for _, of in judged.in_turn(EVENTS_IN_A_PART))
    result = _train(run, config, train, judged, network, start, losses, {"predicting the mean": _mean_of(simple)})
    scales = torch.tensor([step.scale for step in normaliser.steps[1:]], dtype=torch.float64)

    @torch.no_grad()
    def rows(first: int) -> Iterator[dict[str, float]]:
        at_once, end = config.execution.micro_batch_examples, first + EVENTS_IN_A_PART
        for indices, batch in judged.in_turn(at_once, first, end):
            run.progress.touch()
            missed = (network(batch.seen) - batch.truth).double().cpu() * scales
            for event, values in zip(indices.tolist(), missed.tolist(), strict=True):
                yield {"event": event, **dict(zip(TARGETS, values, strict=True))}

    with run.watched(config.execution.stall_minutes):
        parts = run.each(range(0, len(judged.events), EVENTS_IN_A_PART), rows, "parts")
        run.merge_records(parts, ("event",))
    return result


def fill(run: StageRun, config: FillConfig, data: StageInput, look: StageInput, start: Start = None) -> FitResult:
    """Publishes `model/`. calorimeter-judge says what it is worth."""
    normaliser, where, ratio = normaliser_of(look), device(config.execution), config.filling.mask_ratio
    train = Batches(Events.open(data, "train"), normaliser, where, ratio, config.seed)
    judged = Batches(Events.open(data, "validation"), normaliser, where, ratio, config.mask_seed, "judged")
    torch.manual_seed(config.seed)
    network, losses = Filler(config.network), partial(fill_losses, beta=config.filling.loss_beta)
    simple = (losses(judged.light(of.neighbours()), of) for _, of in judged.in_turn(EVENTS_IN_A_PART))
    return _train(run, config, train, judged, network, start, losses, {"the neighbours' mean": _mean_of(simple)})


def _train(
    run: StageRun,
    config: stages.FitConfig,
    train: Batches,
    judged: Batches,
    network: Regressor | Filler,
    start: Start,
    losses: Losses,
    trivial: Mapping[str, float],
) -> FitResult:
    """Publishes the network with its normaliser. It begins with the encoder of `start`, if any, and keeps a frozen one.
    BadInput where that had another task, normaliser or shape, CheckFailed where an answer depends on the batch."""
    taken, frozen = None, config.arm == "frozen"
    if start is not None:
        required = {"task": PRETRAINED, "normaliser_digest": judged.normaliser.digest}
        taken = load_part(network, start.path / "model", "encoder.", required)
    network.encoder.requires_grad_(not frozen)
    network = network.to(judged.device)

    def of_batch(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return losses(model(batch.seen), batch)

    @torch.no_grad()
    def evaluate(model: torch.nn.Module) -> float:
        run.progress.touch()
        return _mean_of(of_batch(model, batch) for _, batch in judged.in_turn(config.execution.micro_batch_examples))

    schedule = Schedule(config.budget, len(train.events))
    optimizer = adamw(network.head if frozen else network, config.budget)
    problem = Problem(network, optimizer, train, of_batch, evaluate, decides=LOSS, trivial=dict(trivial))
    train_problem(run, problem, schedule, config.seed, config.execution)
    network.eval()
    with run.watched(config.execution.stall_minutes), torch.no_grad():
        ways = batchwise(lambda indices: network(judged(indices, 0).seen), CHECKED)
        require_invariant(ways, np.arange(min(CHECKED, len(judged.events))), TOLERANCE)
    with run.publish("model") as folder:
        save_file({name: of.cpu() for name, of in network.state_dict().items()}, folder / "model.safetensors")
        shape = {"task": run.run.stage, "network": config.network.model_dump()}
        durable.write_json(folder / "config.json", shape | {"normaliser_digest": judged.normaliser.digest})
        judged.normaliser.save(folder)
    return FitResult(taken=taken)


def _mean_of(parts: Iterator[torch.Tensor]) -> float:
    return float(torch.cat([part.double().cpu() for part in parts]).mean())


def export(run: StageRun, config: stages.ExportConfig, data: StageInput, **fits: StageInput) -> stages.ExportResult:
    """Publishes `onnx/`, a file for each regressor. CheckFailed where onnxruntime does not say what torch says."""
    if not installed():
        run.log.warning("exports nothing, as the extra is not installed: %s", INSTALL, extra=FOR_THE_TERMINAL)
        return stages.ExportResult(files={})
    light, graph, files = torch.from_numpy(np.array(Events.open(data, "validation").light[:EXPORTED_EVENTS])), None, {}
    with run.publish(FOLDER) as folder:
        for done, role in enumerate(sorted(fits, key=lambda role: int(role.rpartition("-")[2]))):
            run.step(done, len(fits), "models", note=role)
            fit = fits[role]
            model, digest = Physical.load(fit.path / "model"), Normaliser.load(fit.path / "model").digest
            graph = graph or traced(model, light, (INPUT, OUTPUT))
            facts = {"normaliser_digest": digest, OUTPUT: ", ".join(TARGETS), "model": role}
            files[role] = write(graph, model, folder / f"{role}.onnx", facts, [light, light[:1]])
            scales = model.scales[1:].tolist()
            for name, away, scale in zip(TARGETS, files[role].largest_difference, scales, strict=True):
                check = f"{name} of {role} by onnxruntime is that by torch, in deviations of the truth"
                require_limit(check, away / scale, NEAR)
    return stages.ExportResult(files=files)
