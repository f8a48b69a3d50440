"""What is recorded of networks over sensors, again by a plain path: one event alone, numpy, and no loop of a stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage import durable
from tasks.findings.audit import Audited, typical
from tasks.sensors.configuration import Filling, Network
from tasks.sensors.events import SENTINEL
from tasks.sensors.filled import SUMS
from tasks.sensors.networks import Filler, kept
from tasks.sensors.xenon import SENSORS, detector
from tasks.training.draws import uniform_at

Columns = Mapping[str, np.ndarray]
OfEvent = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From light and what is seen of it [S] to what a network says, in its unit: targets, or light [S]."""


@dataclass(frozen=True)
class Hidden:
    """The hidden sensors of each event by the network of a `role`, and what is said of them."""

    role: str
    network: OfEvent
    light: np.ndarray
    how: Filling
    mask_seed: int
    bright_photons: float

    def of(self, event: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The hidden sensors by number, and what the network and their neighbours say of each in photons."""
        light, near = self.light[event], detector().near
        draws = uniform_at(self.mask_seed, "judged", 0, np.array([event]), (SENSORS,)).numpy()[0]
        order = sorted(np.flatnonzero(light != SENTINEL), key=lambda sensor: draws[sensor])
        hidden, seen = np.sort(order[: max(1, int(len(order) * self.how.mask_ratio))]), light != SENTINEL
        seen[hidden] = False
        beside = ([sensor for sensor in near[at] if sensor < SENSORS and seen[sensor]] for at in hidden)
        means = np.array([light[places or seen].mean(dtype=np.float64) for places in beside])
        return hidden, {"predicted": self.network(light, seen)[hidden], "neighbours": means}

    def audit_errors(self, event: int, said: Columns, audited: Audited) -> None:
        """SUMS of an event."""
        (hidden, guesses), light = self.of(event), self.light[event]
        kinds = [light[hidden] >= self.bright_photons, light[hidden] < self.bright_photons]
        again = [(light != SENTINEL).sum(), *(kind.sum() for kind in kinds)]
        again += [np.abs(guess - light[hidden])[kind].sum() for guess in guesses.values() for kind in kinds]
        for column, value in zip(SUMS, again, strict=True):
            (told,) = map(float, said[column])
            audited.compare(
                "sums", f"{column} of event {event} by {self.role}", told, float(value), abs(float(value)) or 1.0
            )

    def audit_predictions(self, event: int, rows: Columns, examples: int, audited: Audited) -> None:
        """Which sensors of an event were hidden, and some of what is kept of these."""
        (hidden, guesses), where = self.of(event), f"event {event} by {self.role}"
        for what, count in (("number", len(hidden)), ("common", len({*hidden} & {*rows["sensor"]}))):
            audited.compare("masks", f"the hidden sensors of {where} ({what})", len(rows["sensor"]), count)
        order = np.argsort(rows["sensor"])
        for place in audited.sample(where, len(hidden), examples):
            for (column, again), kind in zip(guesses.items(), ("forwards", "neighbours"), strict=True):
                told, computed = float(rows[column][order[place]]), float(again[place])
                what = f"{column} of sensor {hidden[place]} in {where}"
                audited.compare(kind, what, told, computed, typical(rows[column], computed))


def alone(kind: Callable[[Network], Any], model: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """From light and what is seen of it [S] to what the network says, in its unit: targets [4], or light [S]."""
    light, *targets = durable.read_json(model / "normaliser.json")["steps"]
    network = kept(kind, model)
    more = light["logarithm_of_plus"]

    def of_event(photons: np.ndarray, seen: np.ndarray) -> np.ndarray:
        values = photons.astype(np.float64) if more is None else np.log10(photons.astype(np.float64) + more)
        values = np.where(seen, (values - light["offset"]) / light["scale"], 0)
        with torch.no_grad():
            found = network(torch.tensor(np.stack([values, seen])[None], dtype=torch.float32))[0].double().numpy()
        of = [light] if kind is Filler else targets
        found = found * np.array([step["scale"] for step in of]) + np.array([step["offset"] for step in of])
        return 10**found - more if kind is Filler and more is not None else found

    return of_event
