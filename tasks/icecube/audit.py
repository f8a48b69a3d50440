"""icecube-audit: some events of validation from their files to an angle again, one by one, in plain numpy and torch.

Neither the reader of events nor the maker of batches is used: pulses come out of the Parquet files as they lie there.
That a trial failed, and what is looked at beside angles, is asked of the kept weights by the stages' own code.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pyarrow import csv

from storage import durable
from storage.errors import CheckFailed, require
from storage.records import read_each, read_records
from tasks.findings.audit import Again, Asked, Audited, AuditResult
from tasks.icecube.batches import Batch, DirectionNetwork
from tasks.icecube.events import GEOMETRY, META, batch_file
from tasks.icecube.look import best_constant
from tasks.icecube.pulses import folder_of, splits_of
from tasks.icecube.results import ANGLE, Constant, LookResult, SplitFacts, TrainResult
from tasks.icecube.stages import AUDITED, AuditConfig, TrainConfig, TrialConfig
from tasks.icecube.train import Prepared, looked_at_again
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.culprits import FOLDER, find_culprits, read_step
from tasks.training.trials.findings import TrialEnd
from tasks.training.weights import load_kept

KEY = ("event_id", "batch_id")
Key = tuple[int, int]
Meta = Mapping[Key, dict[str, Any]]


def audit(
    run: StageRun, config: AuditConfig, events: StageInput, look: StageInput, trained: StageInput, **trials: StageInput
) -> AuditResult:
    """CheckFailed names the first number that is another one than that of its record."""
    where, folder, splits = device(config.execution), folder_of(events, config), splits_of(events)
    own = "failures and outputs by the stages' own code"
    audited = Audited(run, f"numpy and torch, event by event, in fp32 on {where.type} ({own})")
    audited.ask(_files(events, folder))
    meta = _events(folder, splits["validation"])
    audited.ask(_constant(LookResult.read(look).trivial, meta))
    some = [[*meta][place] for place in audited.sample("events", len(meta), config.audit.examples)]
    places = csv.read_csv(folder / GEOMETRY).select([*"xyz"]).to_pandas().to_numpy()
    pulses = {key: _pulses(folder, meta[key], places, config.pulses_per_event) for key in some}
    for done, (role, stage) in enumerate({"trained": trained, **trials}.items()):
        run.step(done, 1 + len(trials), "trainings", note=role)
        if role in trials:
            failed = TrialEnd.read(stage).failure is not None
            fails = failed and _fails(stage, config, events, look)
            again = Again(f"whether {role} fails", float(failed), float(fails))
            audited.ask(Asked("failures", [again], lambda again: [again], "of 1", AUDITED["failures"]))
            if failed:
                continue
        angles = _angles(role, stage, meta, pulses, where)
        audited.ask(Asked("angles", angles, lambda again: [again], "degrees", AUDITED["angles"]))
    audited.ask(_outputs(trained, config, events, look))
    return audited.result()


def _files(events: StageInput, folder: Path) -> Asked[dict[str, Any]]:
    """The events that the meta file has of each file, and the pulses in it."""
    rows = list(read_records(events.path / "records.parquet"))
    ids = pq.read_table(folder / META, columns=["batch_id"])["batch_id"].to_numpy()

    def again(row: dict[str, Any]) -> Iterator[Again]:
        batch_id, there = row["batch_id"], int((ids == row["batch_id"]).sum())
        yield Again(f"the events of file {batch_id}", row["events"], there)
        there = pq.read_metadata(batch_file(folder, batch_id)).num_rows
        yield Again(f"the pulses of file {batch_id}", row["pulses"], there)

    kind = "events and pulses of files"
    return Asked(kind, rows, again, "of 1", AUDITED[kind])


def _events(folder: Path, facts: SplitFacts) -> dict[Key, dict[str, Any]]:
    """The events of validation by id and file: the first ones of its files."""
    table = pq.read_table(folder / META, filters=[("batch_id", "in", facts.batches)])
    rows = table.sort_by([("batch_id", "ascending"), ("first_pulse_index", "ascending")]).to_pylist()
    return {(row["event_id"], row["batch_id"]): row for row in rows[: facts.events]}


def _constant(recorded: Constant, meta: Meta) -> Asked[float]:
    """The best constant direction: the angle that it gives, and that no other was found to be better."""
    azimuth, zenith = (np.array([row[name] for row in meta.values()]) for name in ("azimuth", "zenith"))
    truth = np.array([_unit(*angles) for angles in zip(azimuth, zenith, strict=True)])
    mean = _degrees(truth, _unit(math.radians(recorded.azimuth_degrees), math.radians(recorded.zenith_degrees))).mean()
    both = [float(mean), best_constant(azimuth, zenith).best_constant_degrees]
    where, kind = "the angle of the best constant direction", "trivial angle"
    return Asked(
        kind, both, lambda best: [Again(where, recorded.best_constant_degrees, best)], "degrees", AUDITED[kind]
    )


def _angles(role: str, stage: StageInput, meta: Meta, pulses: Mapping[Key, Any], where: torch.device) -> list[Again]:
    """The angles of these events by the kept weights; CheckFailed unless there is a record of each of validation."""
    network, rows = _network(stage.path / "model").to(where), read_each(stage.path / "records.parquet", KEY, meta)
    again = []
    for key, of_event in pulses.items():
        features = _features(of_event, stage.path / "model").to(where)
        mask = torch.ones(features.shape[:2], dtype=torch.bool, device=where)
        with torch.no_grad():
            answer = network(Batch(features, mask, features.new_zeros(1, 3)))[0].cpu().double().numpy()
        computed = float(_degrees(answer, _unit(meta[key]["azimuth"], meta[key]["zenith"])))
        again.append(Again(f"the angle of event {key[0]} by {role}", rows[key][ANGLE], computed))
    return again


def _fails(stage: StageInput, config: AuditConfig, events: StageInput, look: StageInput) -> bool:
    """Whether the step that a trial kept, or its last validation, has something that is not finite again."""
    asked = stage.configuration(TrialConfig).model_copy(update=_here(config))
    prepared = Prepared.of(asked, events, look, asked.trained.inputs)
    problem = prepared.problem(asked.trained, asked.budget, asked.seed)
    if not (folder := stage.path / FOLDER).exists():
        load_kept(problem.model, stage.path / "model" / "model.safetensors")
        return not all(map(math.isfinite, problem.metrics(problem.model.eval()).values()))
    step = read_step(folder)[1]
    load_kept(problem.model, folder / "model.safetensors")
    try:
        return find_culprits(problem, step) is not None
    except (RuntimeError, IndexError) as error:
        raise CheckFailed(f"the step in {folder} can be made again", error, "that which failed") from None


def _outputs(trained: StageInput, config: AuditConfig, events: StageInput, look: StageInput) -> Asked[Again]:
    """What is said of the outputs of the training."""
    recorded, asked = TrainResult.read(trained), trained.configuration(TrainConfig).model_copy(update=_here(config))
    prepared = Prepared.of(asked, events, look, asked.trained.inputs)
    network = _network(trained.path / "model").to(device(config.execution))
    outputs = looked_at_again(network, prepared.batches(prepared.data.validation))
    shares = outputs.outputs.dead_shares.items()
    again = [
        Again("the spread of the outputs", recorded.outputs.spread_ratio, outputs.outputs.spread_ratio),
        Again("the largest difference of an answer", recorded.largest_difference, outputs.largest_difference),
        *(
            Again(f"dead units of {unit}", recorded.outputs.dead_shares.get(unit, math.nan), now)
            for unit, now in shares
        ),
    ]
    kind = "outputs of the training"
    return Asked(kind, again, lambda each: [each], "of 1", AUDITED[kind])


def _here(config: AuditConfig) -> dict[str, Any]:
    return {"folder": config.folder, "execution": config.execution}


def _network(model: Path) -> DirectionNetwork:
    shape = durable.read_json(model / "config.json")
    network = DirectionNetwork(shape["width"], shape["layers"], shape["heads"], 0.0, shape["batch_norm"])
    load_kept(network, model / "model.safetensors")
    return network.eval()


def _pulses(folder: Path, event: dict[str, Any], places: np.ndarray, limit: int) -> Any:
    """A table of the pulses; of too many those that are likely no noise first, then those with most light."""
    pulses = pq.read_table(batch_file(folder, event["batch_id"])).to_pandas()
    pulses = pulses.iloc[event["first_pulse_index"] : event["last_pulse_index"] + 1]
    pulses = pulses.sort_values(["auxiliary", "charge"], ascending=[True, False]).head(limit).sort_index()
    pulses[[*"xyz"]] = places[pulses["sensor_id"]]
    return pulses


def _features(pulses: Any, model: Path) -> torch.Tensor:
    """[1, pulses, 7], normalised by the file beside the weights."""
    values = []
    for step in durable.read_json(model / "normaliser.json")["steps"]:
        require(step["name"] in pulses, f"the normaliser in {model} is of columns of pulses", step["name"], [*pulses])
        column, added = pulses[step["name"]].to_numpy(np.float64), step["logarithm_of_plus"]
        values.append(((column if added is None else np.log10(column + added)) - step["offset"]) / step["scale"])
    return torch.tensor(np.stack(values, axis=1)[None], dtype=torch.float32)


def _unit(azimuth: float, zenith: float) -> np.ndarray:
    across = math.sin(zenith)
    return np.array([across * math.cos(azimuth), across * math.sin(azimuth), math.cos(zenith)])


def _degrees(ones: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Angles between unit vectors [..., 3] and one."""
    return np.degrees(np.arccos(np.clip(ones @ other, -1, 1)))
