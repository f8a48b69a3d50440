"""calorimeter-export: each regressor as an ONNX file, from photons to cm and MeV, held against its torch model."""

import numpy as np
import torch

from storage.errors import require_limit
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import ExportConfig, ExportResult
from tasks.data.normaliser import Normaliser
from tasks.sensors.events import Events
from tasks.sensors.networks import Physical
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageInput, StageRun
from tasks.training.onnx_files import INSTALL, installed, traced, write

FOLDER, CHECKED, TOLERANCE = "onnx", 100, 1e-3
"""Where the files lie, on how many events of validation they are checked, and how near they must be, in deviations of
the truth."""
INPUT, OUTPUT = "photons", "targets"


def export(run: StageRun, config: ExportConfig, data: StageInput, **fits: StageInput) -> ExportResult:
    """Publishes `onnx/`, a file for each regressor. CheckFailed where onnxruntime does not say what torch says."""
    if not installed():
        run.log.warning("exports nothing, as the extra is not installed: %s", INSTALL, extra=FOR_THE_TERMINAL)
        return ExportResult(files={})
    light, graph, files = torch.from_numpy(np.array(Events.open(data, "validation").light[:CHECKED])), None, {}
    with run.publish(FOLDER) as folder:
        for done, (role, given) in enumerate(fits.items()):
            run.step(done, len(fits), "models", note=role)
            model, digest = Physical.load(given.path / "model"), Normaliser.load(given.path / "model").digest
            graph = graph or traced(model, light, (INPUT, OUTPUT))
            told = {"normaliser_digest": digest, OUTPUT: ", ".join(TARGETS), "model": role}
            files[role] = write(graph, model, folder / f"{role}.onnx", told, [light, light[:1]])
            scales = model.scales[1:].tolist()
            for name, away, scale in zip(TARGETS, files[role].largest_difference, scales, strict=True):
                check = f"{name} of {role} by onnxruntime is that by torch, in deviations of the truth"
                require_limit(check, away / scale, TOLERANCE)
    return ExportResult(files=files)
