"""docs/reading-results.md is executed as it stands, on a study that really ran."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage import durable
from tests.docs.pages import PAGES, blocks

CODE = [block.text for block in blocks("python") if block.page == "docs/reading-results.md"]
ASKED = """
import json, sys
print(json.dumps({
    "keys": sorted(results), "columns": rows.columns.tolist(), "difference": loss["monotonic"] - loss["baseline"],
    "increase": increase["monotonic"],
    "typed": typed.attacks["hotflip"].effects["monotonic"].increase_nats_per_token.value,
    "flips": sum(a != b for a, b in zip(before, after)), "changed": len(worst["positions"]),
    "steps": metrics["train_loss"].dropna().index.tolist(), "least": min(w.min().item() for w in constrained),
    "layers": len(constrained), "nats": nats, "example": worst["example_id"], "numerics": described["numerics"],
    "commit": attempt["source"]["commit"],
}, default=lambda value: value.item()))
"""


@pytest.fixture(scope="module")
def read(smoke_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the code's variables are in the end."""
    folder = tmp_path_factory.mktemp("reader")
    for number, text in enumerate(CODE, 1):
        compile(text, f"block {number}", "exec")
    (folder / "runs").mkdir()
    (folder / "runs" / "quick").symlink_to(smoke_root / "smoke")
    (folder / "runs" / "smoke").symlink_to(smoke_root / "smoke")  # whose own paths name it so
    (folder / "read.py").write_text("\n".join([*CODE, ASKED]))
    done = subprocess.run([sys.executable, "read.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def final_results(smoke_root: Path) -> dict:
    return durable.read_json(next(smoke_root.glob("smoke/aggregate/*/final_results.json")))


def test_the_numbers_that_it_computes_are_those_of_the_report(read, smoke_root):
    results = final_results(smoke_root)
    (difference,) = [
        one["difference_nats_per_token"]
        for one in results["differences"]
        if (one["model"], one["reference"]) == ("monotonic", "baseline")
    ]
    assert read["difference"] == pytest.approx(difference, abs=1e-12)
    effect = results["attacks"]["hotflip"]["effects"]["monotonic"]["increase_nats_per_token"]["value"]
    assert read["increase"] == pytest.approx(effect, abs=1e-12) and read["typed"] == effect


def test_its_tables_name_the_keys_and_columns_that_there_are(read, smoke_root):
    text = PAGES["docs/reading-results.md"]
    keys, columns = (
        set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", part.partition("\n\n")[0], re.MULTILINE))))
        for part in (text.partition("| key | what |")[2], text.partition("| column | what |")[2])
    )
    assert keys == set(read["keys"])
    assert set(read["columns"]) <= columns
    import pyarrow.parquet as pq

    found = {name for file in smoke_root.glob("smoke/*/*/*.parquet") for name in pq.read_schema(file).names}
    assert columns <= found


def test_the_attacked_text_the_curve_and_the_model_are_those_of_the_study(read, smoke_root):
    assert 0 < read["flips"] <= read["changed"]
    assert read["steps"] and max(read["steps"]) == final_results(smoke_root)["arms"]["monotonic"]["steps"]
    assert read["layers"] == 4 and read["least"] >= 0  # input and output of two feed-forward layers
    import pandas as pd

    (file,) = smoke_root.glob(f"{final_results(smoke_root)['runs']['hotflip-monotonic']}/records.parquet")
    row = pd.read_parquet(file).set_index("example_id").loc[read["example"]]
    assert read["nats"] == pytest.approx(row["text_clean_loss_sum_nats"] / row["text_tokens"], rel=1e-5)
    assert read["numerics"]["device"] == "cpu" and len(read["commit"]) == 40


def test_every_piece_of_python_in_the_docs_is_executed_by_a_test():
    assert {block.page for block in blocks("python")} == {
        "README.md",
        "docs/going-on.md",
        "docs/influence.md",
        "docs/reading-results.md",
        "docs/running.md",
        "docs/study-calorimeter.md",
        "docs/your-own-study.md",
    }
    assert len(CODE) >= 9
