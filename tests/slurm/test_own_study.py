"""A study whose files lie outside the repository, on the real cluster: its jobs run a copy of what was started."""

import pytest

from deployments.dag.page import load_page
from deployments.slurm.study.follow import entrust
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.study import SlurmStudy
from storage import attempts, durable
from storage.errors import BadInput
from tests.tasks.tiny import Here

pytestmark = pytest.mark.slurm_long

PAGE = """
import ratchet as r
from dice_helper import numbers

@r.stage(needs="cpu", torch=False)
def draw(run, seed: int):
    return {"drawn": numbers(seed)}

@r.stage(needs="cpu", torch=False)
def add(run, drawn):
    return {"sum": sum(drawn.result["drawn"])}

@r.study
def dice():
    return add(draw())
"""
HELPER = """
import random

def numbers(seed):
    draw = random.Random(seed)
    return [draw.randint(1, 6) for _ in range(10)]
"""


def test_an_own_study_runs_as_jobs_from_a_copy_that_no_edit_changes(bench, tmp_path):
    own, root = tmp_path / "own", tmp_path / "runs"
    own.mkdir()
    for name, text in (("dice", PAGE), ("dice_helper", HELPER)):
        (own / f"{name}.py").write_text(text)
    page = load_page(str(own / "dice.py"))
    study = page.model(name="dice")
    here = Here(tmp_path / "here", study.name, study.execution)
    page.walk(study, here)

    bench.ensure_worker()
    bench.cluster.hold()
    slurm = SlurmStudy.at_site(page, study, str(root))
    entrust(slurm, Looks(slurm.site))
    bench.until("its job waits", lambda: [*slurm.handles[0].run.path.glob("jobs/*.sbatch")])
    (own / "dice_helper.py").write_text("def numbers(seed):\n    return [0]\n")
    (own / "dice.py").write_text("half an edit (")
    bench.cluster.release()
    first, second = slurm.handles
    bench.until("the first stage is finished", first.run.marker_file.exists)
    with pytest.raises(BadInput, match=r"dice\.py:1: SyntaxError"):
        SlurmStudy.kept(slurm.file, slurm.site, root)  # as another process, which reads what is there now
    bench.until("the second is finished", second.run.marker_file.exists)
    for handle, local in zip((first, second), here.handles, strict=True):
        assert durable.read_json(handle.run.result_file) == durable.read_json(local.run.result_file)
        record = attempts.newest(handle.run.attempts) or {}
        assert record["source"].items() >= local.own_source.items() and local.own_source, (
            "a reviewer finds the code by it"
        )
