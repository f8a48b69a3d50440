"""calorimeter-audit: recorded numbers again, event by event, from arrays, weights and normaliser as they lie there."""

import hashlib
from functools import partial

import numpy as np

from storage.errors import require_equal
from tasks.calorimeter import stages
from tasks.calorimeter.export import FOLDER
from tasks.calorimeter.judge import PREDICTIONS
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import EndConfig, FillConfig, FitResult, JudgeConfig, LookResult, Measures, RegressConfig
from tasks.findings.audit import Audited, AuditResult, typical
from tasks.sensors.audited import Hidden, alone
from tasks.sensors.events import SENTINEL, Events
from tasks.sensors.filled import columns
from tasks.sensors.networks import Filler, Regressor
from tasks.stage.run import StageInput, StageRun
from tasks.training.initial import load_part
from tasks.training.onnx_files import runtime


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
    how = "numpy, and networks and their files given one event alone"
    audited = Audited(run, how, "of its usual size", stages.AUDIT_TOLERANCE)
    events, told = Events.open(data, "validation"), LookResult.read(look)
    light, truth, exported = events.light, events.truth, stages.ExportResult.read(export).files
    means = np.asarray(Events.open(data, "train").truth, dtype=np.float64).mean(0)
    _residuals("predicting the mean", truth - means, told.trivial, audited)
    repeated = stages.ShowersResult.read(data).repeated
    for split in ("train", "validation"):
        every = Events.open(data, split).light
        twice = len(every) - len({hashlib.sha256(light.tobytes()).digest() for light in every})
        audited.compare("repeated events", f"repeated events of {split}", repeated.get(split, 0), twice)
    for done, (role, given) in enumerate(fits.items()):
        run.step(done, len(fits), "models", note=role)
        _beginning(role, given, fits["mae"], audited)
        if not (given.path / "records.parquet").exists():
            asked, judging = given.configuration(FillConfig), judged.configuration(JudgeConfig)
            first, masks = min(judging.predicted_events or len(light), len(light)), (asked.filling, asked.mask_seed)
            places = {of: audited.sample(f"{role} {of}", of, config.audit.examples) for of in (first, len(light))}
            hidden = Hidden(role, alone(Filler, given.path / "model"), light, *masks, judging.bright_photons)
            for event in {*places[first], *places[len(light)]}:
                hidden.audit_errors(event, columns(judged.path / "records.parquet", model=role, event=event), audited)
            for event in places[first]:
                rows = columns(judged.path / PREDICTIONS, model=role, event=event)
                hidden.audit_predictions(event, rows, config.audit.examples, audited)
            continue
        rows = columns(given.path / "records.parquet")
        missed = np.stack([rows[name] for name in TARGETS], 1)
        of_event = alone(partial(Regressor, targets=len(TARGETS)), given.path / "model")
        file = runtime(export.path / FOLDER / f"{role}.onnx") if role in exported else None
        for event in audited.sample(role, len(light), config.audit.examples):
            ways = {"forwards": of_event(light[event], light[event] != SENTINEL)}
            ways |= {} if file is None else {stages.EXPORTED: file(light[event : event + 1])[0]}
            for kind, answers in ways.items():
                for name, said, again, of in zip(TARGETS, missed[event], answers - truth[event], missed.T, strict=True):
                    where, computed = f"{name} of event {event} by {role}", float(again)
                    audited.compare(kind, where, said, computed, typical(of, computed))
    return audited.result()


def _beginning(role: str, given: StageInput, mae: StageInput, audited: Audited) -> None:
    """The encoder with which a training began, by the stage's own code: its names of tensors, or none."""
    regresses, taken = (given.path / "records.parquet").exists(), FitResult.read(given).taken
    config = given.configuration(RegressConfig if regresses else FillConfig)
    if config.arm in ("mae-init", "frozen", "finetune"):
        network = Regressor(config.network, len(TARGETS)) if regresses else Filler(config.network)
        require_equal(f"what {role} began with", taken, load_part(network, mae.path / "model", "encoder.", {}))
    else:
        require_equal(f"what {role} began with", taken, None)


def _residuals(what: str, missed: np.ndarray, told: Measures, audited: Audited) -> None:
    at = 0.68 * (len(missed) - 1)
    for target, values in zip(TARGETS, np.abs(missed).T.tolist(), strict=True):
        below, above = sorted(values)[int(at) : int(at) + 2]
        again = below + (at - int(at)) * (above - below)
        audited.compare("residuals", f"the central 68 % of {target} by {what}", told[target], again, again or 1.0)
