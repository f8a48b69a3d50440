"""D7, D8: times and counts of the last run alone, and what executes code."""

import re
import tokenize
from pathlib import Path

from storage import checkpoints as checkpoint_storage
from storage import durable
from tasks.language.blocks import Blocks
from tasks.training.schedule import Schedule
from tests.tasks.tiny import finished_study


def test_d07_no_result_holds_what_a_clock_said_and_timing_is_outside_every_digest():
    study = finished_study()
    clock = re.compile(r"seconds|hour|minute|elapsed|_time\b|timestamp|started|duration", re.IGNORECASE)
    for stage in study.handles:
        marker = durable.read_json(study.path(stage) / "COMPLETE.json")
        assert "timing.jsonl" not in marker["outputs"] and "progress.json" not in marker["outputs"]
        for name in ("result.json", "final_results.json"):
            if (study.path(stage) / name).exists():
                keys = set(re.findall(r'"([^"]+)":', (study.path(stage) / name).read_text()))
                allowed = {"checkpoint_every_seconds"}  # the configuration, which is not measured
                assert not {key for key in keys if clock.search(key)} - allowed, (stage, name)
    assert (study.path("train-baseline") / "timing.jsonl").is_file()


def test_d07_tokens_trained_count_train_blocks_alone():
    study = finished_study()
    blocks = Blocks(study.path("setup") / "text", "train")
    arm = durable.read_json(study.path("aggregate") / "final_results.json")["arms"]["baseline"]
    assert arm["steps"] == Schedule(study.study.budget, len(blocks)).total_steps
    assert arm["tokens_trained"] == 16 * arm["steps"] * (16 - 1)  # full windows only, in a tenth of an epoch


def test_d08_nothing_that_executes_code_is_loaded_from_a_run_directory(tmp_path):
    """torch.load(weights_only=False) stood everywhere."""
    loads = re.compile(
        r"torch\.load|torch\.save|\bpickle\b|joblib|allow_pickle=True|yaml\.(unsafe_)?load\(.*Loader=yaml"
    )
    for old in ("state = torch.load(path, weights_only=False)", "import pickle", "yaml.load(text, Loader=yaml.Loader)"):
        (tmp_path / "old.py").write_text(f"{old}\n")
        assert loads.search(code_of(tmp_path / "old.py"))
    root = Path(checkpoint_storage.__file__).parent.parent
    sources = [
        file for folder in ("storage", "tasks", "flows", "deployments") for file in (root / folder).rglob("*.py")
    ]
    assert len(sources) > 30
    assert [str(file) for file in sources if loads.search(code_of(file))] == []


def code_of(file: Path) -> str:
    """Without comments and texts, which may say what is refused."""
    with file.open("rb") as lines:
        tokens = [(tokenize.tok_name[token.type], token.string) for token in tokenize.tokenize(lines.readline)]
    code = " ".join(text for name, text in tokens if name != "COMMENT" and "STRING" not in name)
    return code.replace(" . ", ".").replace(" (", "(").replace(" = ", "=")
