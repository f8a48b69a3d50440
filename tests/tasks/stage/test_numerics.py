"""Numerics: what each stage declares, what is prepared for it, and what a continuation is compared with."""

import importlib.machinery
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from typing import ClassVar

import numpy as np
import pytest
import torch
import transformers

from storage import durable, locks
from storage.checkpoints import Checkpoints
from storage.errors import BadInput
from tasks.language.configuration import LocalFiles
from tasks.stage import generators, numerics
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tests.conftest import REPOSITORY
from tests.tasks.tiny import ToyConfig, finished_study, handles_of, sentences, toy_attempt, toy_directory

OLD_STAGE = """{
  "configuration": {
    "budget": {"ema_decay": null, "effective_batch_examples": 8, "epochs": 2.0, "learning_rate": 0.05,
               "max_gradient_norm": 1.0, "precision": "fp32", "validations_per_epoch": 2, "warmup_ratio": 0.1,
               "weight_decay": 0.01},
    "dropout": 0.3, "examples": 45, "poisoned_gradient": null, "poisoned_loss": null, "seed": 3,
    "execution": {"allow_numerics_change": false, "attack_batch_examples": 64, "cache_folder": "",
                  "checkpoint_every_seconds": 300.0, "checkpoint_every_steps": null, "checkpoint_stall_share": 0.03,
                  "cpu_threads": 1, "deterministic": true, "device": "cpu", "evaluation_batch_examples": 16,
                  "gradient_checkpointing": false, "keep_checkpoints": 2, "loader_workers": 0,
                  "max_epochs_per_run": null, "max_steps_per_run": 7, "micro_batch_examples": 4, "resources": {},
                  "stall_minutes": 30.0}
  },
  "configuration_type": "tests.tasks.tiny:ToyConfig",
  "external": {}, "inputs": {}, "numerics_changes": [], "stage": "toy", "study": "tiny", "version": 1,
  "fingerprint": "FINGERPRINT", "scientific": {}, "work": "tests.tasks.tiny:train_toy",
  "numerics": {"attack_batch_examples": 64, "cpu_threads": 1, "deterministic": true, "device": "cpu",
               "device_model": "CPU with CAPABILITY", "evaluation_batch_examples": 16, "micro_batch_examples": 4,
               "torch": "TORCH", "transformers": "1.0.0 of another year"}
}"""
"""As the version before wrote it, whatever the stage: the three batch sizes and transformers."""
RUN_ONE_STAGE = """
import sys
from deployments.dag.walk import Walk
from flows import robustness
from tasks.robustness.study import Study
from tasks.stage.attempt import attempt
study, walk = Study.model_validate_json(sys.argv[1]), Walk(sys.argv[2], "tiny")
robustness.page(study, walk)
(one,) = [handle for handle in walk.handles if handle.stage.name == sys.argv[3]]
outcome = attempt(one.stage, one.config, one.run, {role: given.as_input() for role, given in one.inputs.items()})
sys.exit(10 * ("torch" in sys.modules) if outcome.end_state == "finished" else outcome.text)
"""


def test_on_a_cpu_a_read_of_memory_that_nobody_wrote_shows():
    numerics.prepare(Numerics(), Execution(), 0)
    assert torch.empty(8).isnan().all()


def test_what_a_stage_set_for_itself_does_not_reach_the_next_one_of_its_process():
    def drawn() -> bytes:
        numerics.prepare(Numerics(), Execution(device="cpu"), 0)
        assert torch.ones(1, requires_grad=True).sum().requires_grad
        assert torch.get_float32_matmul_precision() == "highest"
        with warnings.catch_warnings(record=True):
            np.zeros(1) / 0
        return torch.rand(1000).mean().numpy().tobytes()

    alone = drawn()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("medium")
        np.seterr(all="raise")
        assert drawn() == alone
    finally:
        numerics.prepare(Numerics(), Execution(device="cpu"), 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_writes_no_memory_twice_and_torch_reads_the_environment_once():
    """Seen on an H100: the first took a sixth of a training, parsing the variable in each matrix product a quarter."""
    numerics.prepare(Numerics(), Execution(device="cuda"), 0)
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert (numerics.WORKSPACES in os.environ) == (torch.cuda.get_device_capability() != (9, 0))
    a = torch.randn(64, 64, device="cuda", requires_grad=True)
    (a @ a).sum().backward()  # on another thread, with a handle of its own


def test_an_attempt_says_on_what_it_works_and_a_gpu_all_that_matters_of_it(tmp_path, monkeypatch):
    toy_attempt(tmp_path, ToyConfig(), max_steps_per_run=1)
    record = durable.read_json(toy_directory(tmp_path, ToyConfig()).attempts / "0001.json")
    assert record["hardware"].startswith("CPU with ") and f", torch {torch.__version__} " in record["hardware"]
    (driver := tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Kernel Module for x86_64  580.159.04 R\n")
    monkeypatch.setattr(numerics, "DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name, value in {
        "is_available": True,
        "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_capability": (9, 0),
        "mem_get_info": (78 << 30, 80 << 30),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    line = numerics.machine(Numerics(), Execution(device="cuda"))
    assert line.startswith(
        "NVIDIA H100 80GB HBM3, 78.0 of 80.0 GiB free, compute capability 9.0, driver 580.159.04, torch"
    )
    assert line.endswith(" for CUDA 13.0") and numerics.machine(Numerics(torch=False), Execution()) == ""


@pytest.mark.parametrize(
    ("built_for", "says"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", True),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", False),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.1'", False),
    ],
)
def test_a_torch_that_was_built_without_cuda_is_known_from_its_files(built_for, says, tmp_path, monkeypatch):
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{built_for}\n")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert bool(numerics.without_cuda()) == says
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="built without CUDA: install" if says else "torch finds no GPU here"):
        numerics.device(Execution(device="cuda"))


@pytest.mark.parametrize("stage", ["setup", "aggregate"])
def test_a_stage_that_uses_no_torch_does_not_import_it(stage, tmp_path):
    finished = finished_study().copy(tmp_path / "runs")
    if stage == "setup":  # plain files: the reader of tables is a package that imports torch where it finds it
        texts = tmp_path / "texts"
        texts.mkdir()
        for number, text in enumerate(sentences(300)):
            (texts / f"{number:03}.txt").write_text(text)
        study = finished.study.model_copy(update={"text": LocalFiles(paths=[str(texts)])})
    else:
        study = finished.study
        shutil.rmtree(finished.path(stage))
    arguments = [study.model_dump_json(), str(finished.root), stage]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ONE_STAGE, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = handles_of(finished.root, study)[stage].run
    assert "device" not in durable.read_json(run.stage_file)["numerics"]


def test_a_stage_names_fields_of_its_own_execution_only():
    with pytest.raises(TypeError, match=r"Misnamed\.numerics names micro_batch, which is no field of its execution"):

        class Misnamed(StageConfiguration):
            numerics: ClassVar = Numerics(fields=("micro_batch",))


def test_a_stage_that_says_nothing_is_taken_to_train():
    class Silent(StageConfiguration):
        pass

    found = numerics.prepare(Silent.numerics, Execution(cpu_threads=1), 0)
    of_torch = ["device", "device_model", "cpu_threads", "deterministic", "torch"]
    assert list(found) == [*of_torch, "environment", "micro_batch_examples"]


@pytest.mark.parametrize("loaded", ["sys", "numpy, scipy.linalg, torch"])
def test_numpy_works_with_the_threads_of_the_stage_whatever_the_shell_says_and_was_loaded_before(loaded):
    """Sums are parted among them: a job's cores, or OMP_NUM_THREADS of a shell, decided on the last bits."""
    code = f"""
import {loaded}, os
from tasks.stage import numerics
from tasks.stage.execution import Execution
numerics.prepare(numerics.Numerics(torch=False), Execution(cpu_threads=2), 0)
from threadpoolctl import threadpool_info
print({{one["num_threads"] for one in threadpool_info()}}, os.environ["OMP_NUM_THREADS"])
"""
    shell = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], env=shell, capture_output=True, text=True, check=True)
    assert done.stdout == "{2} 2\n"


def test_a_variable_that_chooses_kernels_is_part_of_the_numerics_and_older_runs_are_not_asked(tmp_path, monkeypatch):
    config = ToyConfig()
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert toy_attempt(tmp_path, config, max_steps_per_run=7).end_state == "out_of_time"
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    refused = toy_attempt(tmp_path, config)
    assert refused.end_state == "bad_input" and "environment was OPENBLAS_CORETYPE=Haswell, is none" in refused.message
    file = toy_directory(tmp_path, config).stage_file
    kept = durable.read_json(file)
    del kept["numerics"]["environment"]
    durable.write_json(file, kept)
    assert toy_attempt(tmp_path, config).end_state == "finished"


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_cuda_without_a_gpu_is_bad_input_and_auto_takes_the_cpu(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    execution = Execution(device=device, cpu_threads=1)
    if device == "auto":
        assert numerics.prepare(Numerics(), execution, 0)["device"] == "cpu"
    else:
        with pytest.raises(BadInput, match=r"torch finds no GPU here|was built without CUDA"):
            numerics.prepare(Numerics(), execution, 0)


def test_a_run_begun_when_every_stage_listed_everything_goes_on(tmp_path):
    config = ToyConfig()
    assert toy_attempt(tmp_path, config, max_steps_per_run=7).end_state == "out_of_time"
    run = toy_directory(tmp_path, config)
    facts = {"FINGERPRINT": run.fingerprint, "TORCH": torch.__version__}
    facts["CAPABILITY"] = torch.backends.cpu.get_cpu_capability()
    old = OLD_STAGE
    for name, value in facts.items():
        old = old.replace(name, value)
    run.stage_file.write_text(old)
    assert json.loads(old)["numerics"]["transformers"] != transformers.__version__

    other = toy_attempt(tmp_path, config, micro_batch_examples=8)
    assert other.end_state == "bad_input" and "micro_batch_examples was 4, is 8." in other.message
    assert toy_attempt(tmp_path, config).end_state == "finished"
    assert "numerics_changes" not in durable.read_json(run.result_file)


def drawn() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), np.random.randn(), random.random(), random.gauss(0, 1)]


def test_every_generator_goes_on_from_a_checkpoint(tmp_path):
    lock = locks.acquire(tmp_path / "locks")
    try:
        checkpoints = Checkpoints(tmp_path / "checkpoints", {}, lock)
        drawn()
        checkpoints.save(1, {"rng": generators.generator_tensors(False)}, {"rng": generators.generator_numbers()})
        expected = drawn()
        assert drawn() != expected
        saved = checkpoints.verified(1)
        generators.load_generators(saved.tensors("rng"), saved.state["rng"])
        assert drawn() == expected
    finally:
        lock.release()
