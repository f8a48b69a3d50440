"""icecube-audit: some events of validation from their files to an angle again, one by one, in plain numpy and torch.

Neither the reader of events nor the maker of batches is used: pulses come out of the Parquet files as they lie there.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pyarrow import csv

from storage import durable
from storage.errors import require_each_once, require_equal
from tasks.data.gate import ends, require_inputs
from tasks.data.normaliser import Normaliser
from tasks.findings.audit import Audited, AuditResult
from tasks.icecube.batches import Batch
from tasks.icecube.events import GEOMETRY, META, batch_file
from tasks.icecube.look import normaliser_of, scaled_by
from tasks.icecube.network import DirectionNetwork
from tasks.icecube.pulses import WRITTEN
from tasks.icecube.results import LookResult, PulsesResult, TrainResult
from tasks.icecube.stages import AUDIT_TOLERANCE, AuditConfig, LookConfig, TrainConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.trials.collapse import require_diverse
from tasks.training.weights import load_kept, weights_digest


def audit(run: StageRun, config: AuditConfig, events: StageInput, look: StageInput, trained: StageInput) -> AuditResult:
    """CheckFailed names the first event whose angle is another one than that of its record."""
    where = device(config.execution)
    audited = Audited(run, f"numpy and torch, event by event, in fp32 on {where.type}", "degrees", AUDIT_TOLERANCE)
    folder = Path(config.folder) if config.folder else events.path / WRITTEN
    said, model = TrainResult.read(trained), trained.path / "model"
    check = f"model/ in {trained.path} holds the weights that its training left"
    require_equal(check, weights_digest(model), said.weights_digest)
    rows, meta = pq.read_table(trained.path / "records.parquet").to_pylist(), _events(folder, PulsesResult.read(events))
    recorded, there = ([(row["event_id"], row["batch_id"]) for row in of] for of in (rows, meta.values()))
    require_each_once("there is a record of each event of validation", recorded, there)
    network, places = _network(model).to(where), csv.read_csv(folder / GEOMETRY).select([*"xyz"]).to_pandas().to_numpy()
    weights = sum(parameter.numel() for parameter in network.parameters())
    require_equal("model/ has the parameters that the training counted", said.parameters, weights)
    for number in audited.sample("events", len(rows), config.audit.examples):
        run.stop.check()
        row = rows[number]
        event = meta[row["event_id"]]
        features = _features(folder, event, places, model, config.pulses_per_event).to(where)
        mask = torch.ones(features.shape[:2], dtype=torch.bool, device=where)
        with torch.no_grad():
            found = network(Batch(features, mask, features.new_zeros(1, 3)))[0].cpu().double().numpy()
        computed = _degrees(found, _unit(event["azimuth"], event["zenith"]))
        audited.compare("angles", f"the angle of event {row['event_id']}", row["angle_degrees"], float(computed))
    _require_inputs(look, trained, said)
    trivial = LookResult.read(look).trivial
    constant = _unit(math.radians(trivial.azimuth_degrees), math.radians(trivial.zenith_degrees))
    truth = np.array([_unit(meta[row["event_id"]]["azimuth"], meta[row["event_id"]]["zenith"]) for row in rows])
    computed = _degrees(truth, constant).mean()
    audited.compare("trivial angle", "the best constant direction", trivial.best_constant_degrees, float(computed))
    return audited.result()


def _events(folder: Path, found: PulsesResult) -> dict[int, dict[str, Any]]:
    """The events of validation by their ids: the first ones of its files, without those that were left out."""
    facts = found.validation
    table = pq.read_table(folder / META, filters=[("batch_id", "in", facts.batches)])
    rows = table.sort_by([("batch_id", "ascending"), ("first_pulse_index", "ascending")]).to_pylist()
    left_out = set(facts.left_out)
    kept = [row for row in rows if row["event_id"] not in left_out]
    return {row["event_id"]: row for row in kept[: facts.events]}


def _require_inputs(look: StageInput, trained: StageInput, said: TrainResult) -> None:
    """The normaliser of the training is the one that the statistics of the inputs give, and so are their ranges."""
    told = LookResult.read(look)
    asked_for, of_training = look.configuration(LookConfig), trained.configuration(TrainConfig)
    normaliser = scaled_by(asked_for.scaling, told.columns)
    for where, digest in (
        ("icecube-look", told.normaliser_digest),
        ("the training", said.normaliser_digest),
        ("normaliser/ of icecube-look", normaliser_of(look).digest),
        ("model/", Normaliser.load(trained.path / "model").digest),
    ):
        require_equal(f"the normaliser of {where} is that of the inputs", digest, normaliser.digest)
    require_inputs(told.columns, normaliser, asked_for.max_absolute_z)
    ranges = {column.name: list(ends(column, normaliser)) for column in told.columns}
    require_equal("the ranges after normalising follow from the statistics of the inputs", told.normalised, ranges)
    require_diverse(said.outputs, of_training.min_spread_ratio, of_training.max_dead_share)


def _network(model: Path) -> DirectionNetwork:
    shape = durable.read_json(model / "config.json")
    network = DirectionNetwork(shape["width"], shape["layers"], shape["heads"], 0.0, shape["batch_norm"])
    load_kept(network, model / "model.safetensors")
    return network.eval()


def _features(folder: Path, event: dict[str, Any], places: np.ndarray, model: Path, limit: int) -> torch.Tensor:
    """[1, pulses, 7], normalised by the file beside the weights; of too many pulses those that are likely no noise
    first, then those with most light."""
    pulses = pq.read_table(batch_file(folder, event["batch_id"])).to_pandas()
    pulses = pulses.iloc[event["first_pulse_index"] : event["last_pulse_index"] + 1]
    pulses = pulses.sort_values(["auxiliary", "charge"], ascending=[True, False]).head(limit).sort_index()
    pulses[[*"xyz"]] = places[pulses["sensor_id"]]
    values = []
    for step in durable.read_json(model / "normaliser.json")["steps"]:
        of, added = pulses[step["name"]].to_numpy(np.float64), step["logarithm_of_plus"]
        values.append(((of if added is None else np.log10(of + added)) - step["offset"]) / step["scale"])
    return torch.tensor(np.stack(values, axis=1)[None], dtype=torch.float32)


def _unit(azimuth: float, zenith: float) -> np.ndarray:
    across = math.sin(zenith)
    return np.array([across * math.cos(azimuth), across * math.sin(azimuth), math.cos(zenith)])


def _degrees(ones: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Angles between unit vectors [..., 3] and one."""
    return np.degrees(np.arccos(np.clip(ones @ other, -1, 1)))
