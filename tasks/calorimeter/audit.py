"""calorimeter-audit: recorded numbers again, event by event, from arrays, weights and normaliser as they lie there."""

from __future__ import annotations

from functools import partial

import numpy as np

from tasks.calorimeter import stages
from tasks.calorimeter.export import FOLDER
from tasks.calorimeter.judge import PREDICTIONS
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import EndConfig, FillConfig, FitResult, JudgeConfig, LookResult, Measures
from tasks.findings.audit import Audited, AuditResult
from tasks.sensors.audited import Hidden, alone
from tasks.sensors.events import SENTINEL, Events
from tasks.sensors.filled import columns
from tasks.sensors.networks import Filler, Regressor
from tasks.stage.run import StageInput, StageRun
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
    audited = Audited(run, how, "of the largest of its kind", stages.AUDIT_TOLERANCE)
    events, told = Events.open(data, "validation"), LookResult.read(look)
    light, truth, exported = events.light, events.truth, stages.ExportResult.read(export).files
    means = np.array([column["mean"] for column in told.columns[1:]], dtype=np.float64)
    _residuals("predicting the mean", truth - means, told.trivial, audited)
    for done, (role, given) in enumerate(fits.items()):
        run.step(done, len(fits), "models", note=role)
        measures = FitResult.read(given).measures
        if TARGETS[0] not in measures:
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
        _residuals(role, missed, measures, audited)
        for event in audited.sample(role, len(light), config.audit.examples):
            ways = {"forwards": of_event(light[event], light[event] != SENTINEL)}
            ways |= {} if file is None else {stages.EXPORTED: file(light[event : event + 1])[0]}
            for kind, answers in ways.items():
                again, largest = answers - truth[event], np.abs(missed).max(0)
                for name, said, found, of in zip(TARGETS, missed[event], again, largest, strict=True):
                    audited.compare(kind, f"{name} of event {event} by {role}", said, float(found), float(of))
    return audited.result()


def _residuals(what: str, missed: np.ndarray, told: Measures, audited: Audited) -> None:
    at = 0.68 * (len(missed) - 1)
    for target, values in zip(TARGETS, np.abs(missed).T.tolist(), strict=True):
        below, above = sorted(values)[int(at) : int(at) + 2]
        again = below + (at - int(at)) * (above - below)
        audited.compare("residuals", f"the central 68 % of {target} by {what}", told[target], again, told[target])
