"""The study of docs/going-on.md, each stage longer than the time limit of its job: it goes on in the next."""

import pytest

from deployments.dag.page import load_page
from flows.command.settings import read_study
from storage import durable
from tests.slurm.harness import until
from tests.tasks.tiny import Here
from tests.test_going_on import FILES, outputs

REST = """
import os, time
from transformers import TrainerCallback

STEPS = []

def paused():
    return os.path.exists("{pause}")

def rest(run):
    STEPS.append(run)  # the first job of a stage comes so far, and waits there until it is asked to stop
    while len(STEPS) > 3 and paused() and run.lock.number == 1 and not run.stop.requested:
        time.sleep(0.1)

class Rest(TrainerCallback):
    def __init__(self, run):
        self.run = run

    def on_step_end(self, *given, **named):
        rest(self.run)
"""
LINES = {
    "mine.py": {
        "import ratchet as r\n": "import rest\nimport ratchet as r\n",
        'unit="folds"):\n': 'unit="folds"):\n        rest.rest(run)\n',
        "        run.progress.update(epoch": "        rest.rest(run)\n        run.progress.update(epoch",
        "train_dataset=data)": "train_dataset=data, callbacks=[rest.Rest(run)])",
    },
    "train.py": {
        "import argparse\n": "import argparse\nimport rest\nimport time\n",
        "    optimizer.zero_grad()": "    while step == 60 and not options.resume and rest.paused():\n"
        "        time.sleep(0.1)\n    optimizer.zero_grad()",
    },
}
"""Lines of the page, and how they are longer than a job."""
PATIENCE_SECONDS = 1800.0


@pytest.mark.drawn
@pytest.mark.slurm_long
@pytest.mark.parametrize("how", ["--wait", "--detach"])
def test_each_way_of_the_page_goes_on_over_jobs_that_end_before_it(alone, how):
    (pause := alone.folder / "pause").touch()
    (alone.folder / "rest.py").write_text(REST.format(pause=pause))
    for name, text in FILES.items():
        for line, longer in LINES[name].items():
            assert text.count(line) == 1, line
            text = text.replace(line, longer)
        (alone.folder / name).write_text(text)
    page = load_page(str(alone.folder / "mine.py"))
    limits = {"all": (3, 60), "mine-script": (2, 30)}  # twice its minute to save would be all of the script's
    changes = [f"script.path={alone.folder / 'train.py'}"]
    for stage, (minutes, lead) in limits.items():
        asked = f"execution.resources.{stage}"
        changes += [f"{asked}.time_limit_minutes={minutes}", f"{asked}.lead_seconds={lead}"]
    begun = alone.begin("run", page.place, *(f"--set={change}" for change in changes), "--dispatch=slurm", how)
    if how == "--detach":
        assert begun.end()[0] == 75, begun.said()
    stages = "mine/*/*/COMPLETE.json"
    until("all are finished", lambda: len(list(alone.root.glob(stages))) == 4, PATIENCE_SECONDS, alone.told)
    if how == "--wait":
        assert begun.end()[0] == 0, begun.said()

    for marker in alone.root.glob(stages):
        records = [durable.read_json(file) for file in sorted(marker.parent.glob("attempts/*.json"))]
        assert [record["end_state"] for record in records[:-1]] == ["out_of_time"] * max(1, len(records) - 1)
        assert records[-1]["end_state"] == "finished" and max(records[-1]["began_at"]) > 0, "it went on, not anew"
    pause.unlink()
    page.walk(study := read_study(page, None, changes, None), Here(alone.folder / "here", "mine", study.execution))
    here, cluster = outputs(alone.folder / "here"), outputs(alone.root)
    assert cluster.keys() == here.keys()
    assert [name for name, data in cluster.items() if data != here[name]] == []
