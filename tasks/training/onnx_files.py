"""A trained network as an ONNX file, which runs without torch and without this project: an extra of the install.

The bytes of a file depend on the network and on the versions of the exporter alone: where in the source each operation
came from, with paths of this machine, is taken out. Networks that differ in their weights alone share a graph, which
takes seconds to trace.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.attempts import version_of
from storage.errors import BadInput, install
from tasks.stage.result import Result

if TYPE_CHECKING:  # a page's walk asks for versions, and does without these
    import numpy as np
    import torch
    from onnx import ModelProto

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
INSTALL = install("export")


class OnnxFile(Result):
    """By how much onnxruntime differs from torch at most in each output of a file, over so many examples."""

    examples: int
    largest_difference: list[float]


def installed() -> list[str]:
    """`name==version` of what exporting takes; empty where one of these is missing."""
    versions = {name: version_of(name) for name in PACKAGES}
    return [f"{name}=={version}" for name, version in versions.items()] if all(versions.values()) else []


def exported_in_words(files: Mapping[str, OnnxFile], outputs: Sequence[str]) -> str:
    """What a report says of the files of a study, by names of their outputs with units."""
    if not files:
        return f"Not exported: the extra that writes ONNX files is not installed (`{INSTALL}`; then the same command)."
    largest = map(max, zip(*(file.largest_difference for file in files.values()), strict=True))
    distances = ", ".join(f"{name} {away:.1e}" for name, away in zip(outputs, largest, strict=True))
    examples = min(file.examples for file in files.values())
    return (
        f"Exported: {len(files)} models as ONNX files with their normaliser inside. On {examples} examples onnxruntime "
        f"differs from torch by no more than: {distances}."
    )


def traced(network: torch.nn.Module, examples: torch.Tensor, names: tuple[str, str]) -> ModelProto:
    """The graph of a network in evaluation, for any number of examples; here there are at least two of them.

    `names` are those of its one input and its one output.
    """
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that no network here uses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program: Any = torch.onnx.export(
            network,
            (examples,),
            input_names=names[:1],
            output_names=names[1:],
            dynamic_shapes=({0: torch.export.Dim("examples")},),
            dynamo=True,
            optimize=False,  # weights keep their names; a runtime optimises when it loads
            verbose=False,
        )
    model = program.model_proto
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]
    return model


def write(
    graph: ModelProto,
    network: torch.nn.Module,
    file: Path,
    metadata: Mapping[str, str],
    batches: Sequence[torch.Tensor],
) -> OnnxFile:
    """Writes a network that was traced as `graph`, or differs from that one in its weights alone, and asks both.

    The file holds the `metadata`; the first of `batches` holds the examples of all. ValueError where the graph has no
    place for a weight.
    """
    import numpy as np
    import onnx
    import torch

    model, weights = onnx.ModelProto(), network.state_dict()
    model.CopyFrom(graph)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights.pop(tensor.name).numpy(), tensor.name))
    if weights:
        raise ValueError(f"the graph has no place for {', '.join(weights)}: trace this network by itself")
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    file.write_bytes(model.SerializeToString(deterministic=True))
    answers = runtime(file, torch.get_num_threads())
    with torch.no_grad():
        away = [np.abs(answers(batch.numpy()) - network(batch).numpy()).max(0) for batch in batches]
    return OnnxFile(examples=len(batches[0]), largest_difference=np.max(away, axis=0).tolist())


def runtime(file: Path, threads: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    """What a file of one input and one output says, by onnxruntime on a CPU. BadInput where that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        raise BadInput(f"{file} is read by onnxruntime, which is not installed: {INSTALL}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.use_deterministic_compute = threads, True
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # classes of its own, and RuntimeError
        raise BadInput(f"{file} is no ONNX file that onnxruntime reads: {error}") from None
    (first,) = session.get_inputs()
    return lambda values: session.run(None, {first.name: values})[0]
