"""The curves of a training while it runs."""

import json
from pathlib import Path
from typing import Any

from deployments.views.curves import curves_of


def _written(folder: Path, *rows: dict[str, Any], end: str = "") -> Path:
    file = folder / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    return file


def test_nothing_is_drawn_of_what_was_not_measured(tmp_path):
    assert curves_of(tmp_path / "metrics.jsonl") == []
    assert curves_of(_written(tmp_path, {"step": 10, "train_loss": 3.0}, {"step": 10, "gradient_norm_max": 1.0})) == []


def test_a_loss_is_drawn_in_training_and_validation_beside_what_needs_no_learning(tmp_path):
    rows = [{"step": step, "train_loss": 5 - step / 100, "learning_rate": 0.1} for step in (10, 20, 30)]
    judged = {"step": 30, "validation_loss": 3.0, "trivial": {"unigram": 6.0}, "ratio_to_trivial": 0.5}
    (drawn,) = curves_of(_written(tmp_path, *rows, judged, end='{"step": 40, "train_'))
    for word in ("training", "validation", "unigram, without learning", ">step<", ">loss<", "loss up to step 30."):
        assert word in drawn, word


def test_each_metric_has_axes_of_its_own_and_the_trivial_value_stands_with_the_one_it_is_of(tmp_path):
    rows = [
        {"step": step, "validation_angular_error": 1.4, "validation_loss": 2.0, "validation_share": 0.2}
        | {"trivial": {"a constant direction": 1.57}, "ratio_to_trivial": 1.4 / 1.57}
        for step in (5, 10)
    ]
    drawn = dict(zip(("angular error", "loss", "share"), curves_of(_written(tmp_path, *rows)), strict=True))
    for metric, svg in drawn.items():
        assert f">{metric}<" in svg
        assert ("a constant direction" in svg) == (metric == "angular error")
