"""calorimeter-audit: recorded numbers again, event by event, from arrays, weights and normaliser as they lie there: one
event alone, numpy, and no loop of a stage; generated events by the stage's own draws."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from storage import durable
from storage.errors import require_equal
from tasks.calorimeter import stages
from tasks.calorimeter.fit import FOLDER
from tasks.calorimeter.judge import SUMS, columns
from tasks.calorimeter.showers import AT_ONCE, TARGETS, generated
from tasks.calorimeter.stages import EndConfig, FillConfig, FitResult, JudgeConfig, LookResult, RegressConfig
from tasks.findings.audit import Again, Asked, Audited, AuditResult, typical
from tasks.sensors.configuration import Network
from tasks.sensors.networks import Filler, Regressor, kept
from tasks.sensors.xenon import SENSORS, SENTINEL, Events, detector
from tasks.stage.run import StageInput, StageRun
from tasks.training.draws import uniform_at
from tasks.training.initial import load_part
from tasks.training.onnx_files import runtime

Row = TypeVar("Row")
OfEvent = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From light and what is seen of it [S] to what a network says, in its unit: targets [4], or light [S]."""


def audit(
    run: StageRun,
    config: EndConfig,
    data: StageInput,
    look: StageInput,
    judged: StageInput,
    export: StageInput,
    **fits: StageInput,
) -> AuditResult:
    """CheckFailed names the first number that is another one than that of its record."""
    audited = Audited(run, "numpy, and networks and their files given one event alone")

    def ask(kind: str, rows: Sequence[Row], again: Callable[[Row], Iterable[Again]], role: str = "") -> None:
        count = config.audit.examples if role else None
        audited.ask(Asked(kind, rows, again, "of its usual size", stages.AUDIT_TOLERANCE, count), role)

    ask("repeated events", ("train", "validation"), partial(_repeated, data))
    ask("residuals", TARGETS, partial(_trivial, data, LookResult.read(look).trivial))
    events, exported = Events.open(data, "validation"), stages.ExportResult.read(export).files
    for done, (role, fit) in enumerate(fits.items()):
        run.step(done, len(fits), "models", note=role)
        _require_beginning(role, fit, fits["mae"])
        if not (fit.path / "records.parquet").exists():
            ask("sums", range(len(events)), _Hidden(role, fit, judged, events.light).sums, role)
            continue
        of_event = alone(partial(Regressor, targets=len(TARGETS)), fit.path / "model")
        ask("forwards", range(len(events)), partial(_missed, role, fit, events, of_event), role)
        if role in exported:
            file = runtime(export.path / FOLDER / f"{role}.onnx")
            ask(stages.EXPORTED, range(len(events)), partial(_missed, role, fit, events, _of_file(file)), role)
    return audited.result()


def _trivial(data: StageInput, recorded: stages.Measures, target: str) -> Iterator[Again]:
    """What predicting the mean of train misses of a target."""
    train, truth = (np.asarray(Events.open(data, split).truth, np.float64) for split in ("train", "validation"))
    place = TARGETS.index(target)
    missed, at = sorted(np.abs(truth[:, place] - train[:, place].mean()).tolist()), 0.68 * (len(truth) - 1)
    below, above = missed[int(at) : int(at) + 2]
    again = below + (at - int(at)) * (above - below)
    yield Again(f"the central 68 % of {target} by predicting the mean", recorded[target], again, again or 1.0)


def _repeated(data: StageInput, split: str) -> Iterator[Again]:
    """How many events are there twice; and, of generated ones, whether those that are judged are what was drawn."""
    every, config = Events.open(data, split), data.configuration(stages.ShowersConfig)
    twice = len(every) - len({hashlib.sha256(light.tobytes()).digest() for light in every.light})
    yield Again(f"repeated events of {split}", stages.ShowersResult.read(data).repeated.get(split, 0), twice)
    if split == "validation" and isinstance(config.showers, stages.Generated):
        for _, first, *drawn in generated(config.showers, split, config.seed):
            for what, kept, again in zip(("light", "truth"), (every.light, every.truth), drawn, strict=True):
                some = kept[first : first + AT_ONCE]
                same = float(np.isclose(some, again, rtol=1e-4).mean()) if some.shape == again.shape else 0.0
                yield Again(f"the share of the {what} of {split} that is what was generated", same, 1.0)


def _require_beginning(role: str, fit: StageInput, mae: StageInput) -> None:
    """The encoder with which a training began, by the stage's own code: its names of tensors, or none."""
    regresses, taken = (fit.path / "records.parquet").exists(), None
    config = fit.configuration(RegressConfig if regresses else FillConfig)
    if config.arm in ("mae-init", "frozen", "finetune"):
        network = Regressor(config.network, len(TARGETS)) if regresses else Filler(config.network)
        taken = load_part(network, mae.path / "model", "encoder.", {})
    require_equal(f"what {role} began with", FitResult.read(fit).taken, taken)


def _missed(role: str, fit: StageInput, events: Events, of_event: OfEvent, event: int) -> Iterator[Again]:
    """By how much a regressor, or its file, misses the targets of an event."""
    light, rows = events.light[event], columns(fit.path / "records.parquet")
    missed = of_event(light, light != SENTINEL) - events.truth[event]
    for target, again in zip(TARGETS, missed.tolist(), strict=True):
        yield Again(f"{target} of event {event} by {role}", rows[target][event], again, typical(rows[target], again))


def _of_file(file: Callable[[np.ndarray], np.ndarray]) -> OfEvent:
    return lambda light, _: file(light[None])[0]


@dataclass
class _Hidden:
    """The hidden sensors of each event by a network that fills in, and what calorimeter-judge says of them."""

    role: str
    given: StageInput
    judged: StageInput
    light: np.ndarray

    def __post_init__(self) -> None:
        self.config, self.judging = self.given.configuration(FillConfig), self.judged.configuration(JudgeConfig)
        self.network = alone(Filler, self.given.path / "model")

    def of(self, event: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The hidden sensors by number, and what the network and their neighbours say of each in photons."""
        light, near = self.light[event], detector().near
        draws = uniform_at(self.config.mask_seed, "judged", 0, np.array([event]), (SENSORS,)).numpy()[0]
        order = sorted(np.flatnonzero(light != SENTINEL), key=lambda sensor: draws[sensor])
        count = max(1, int(len(order) * self.config.filling.mask_ratio))
        hidden, seen = np.sort(order[:count]), light != SENTINEL
        seen[hidden] = False
        beside = ([sensor for sensor in near[at] if sensor < SENSORS and seen[sensor]] for at in hidden)
        means = np.array([light[places or seen].mean(dtype=np.float64) for places in beside])
        return hidden, {"predicted": self.network(light, seen)[hidden], "neighbours": means}

    def sums(self, event: int) -> Iterator[Again]:
        (hidden, guesses), light = self.of(event), self.light[event]
        recorded = columns(self.judged.path / "records.parquet", model=self.role, event=event)
        bright = light[hidden] >= self.judging.bright_photons
        again = [(light != SENTINEL).sum(), bright.sum(), (~bright).sum()]
        again += [np.abs(guess - light[hidden])[kind].sum() for guess in guesses.values() for kind in (bright, ~bright)]
        for column, value in zip(SUMS, map(float, again), strict=True):
            (said,) = map(float, recorded[column])
            size = value if "mae" in column and value else 1.0  # counts are exact
            yield Again(f"{column} of event {event} by {self.role}", said, value, size)


def alone(kind: Callable[[Network], Any], model: Path) -> OfEvent:
    """A kept network, and its normaliser by numpy."""
    light, *targets = durable.read_json(model / "normaliser.json")["steps"]
    network = kept(kind, model)
    more = light["logarithm_of_plus"]

    def of_event(photons: np.ndarray, seen: np.ndarray) -> np.ndarray:
        values = photons.astype(np.float64) if more is None else np.log10(photons.astype(np.float64) + more)
        values = np.where(seen, (values - light["offset"]) / light["scale"], 0)
        with torch.no_grad():
            answers = network(torch.tensor(np.stack([values, seen])[None], dtype=torch.float32))[0].double().numpy()
        steps = [light] if kind is Filler else targets
        answers = answers * np.array([step["scale"] for step in steps]) + np.array([step["offset"] for step in steps])
        return 10**answers - more if kind is Filler and more is not None else answers

    return of_event
