"""D10, D11, D25: what was reused for another model, and seeds that were one."""

import pytest

from storage.errors import CheckFailed
from tasks.attacks.sweep import Cell, _require_distinct_seeds
from tasks.robustness.final_results import FinalResults
from tests.tasks.tiny import finished_study, handles_of, tiny_study


@pytest.mark.parametrize(
    ("group", "key", "value", "shared"),
    [("constraint", "variant", "mlp_in", {"setup", "base"}), ("model", "layers", 1, {"setup"})],
)
def test_d10_d11_d25_one_place_for_two_variants_or_sizes_of_a_model(tmp_path, group, key, value, shared):
    """A 2.8b run exited 0 as "already complete" since the 1.4b run had finished; t5-small and t5-base had one flag."""
    study = tiny_study(tmp_path)
    other = study.model_copy(update={group: getattr(study, group).model_copy(update={key: value})})
    places, others = (
        {name: handle.run.path for name, handle in handles_of(tmp_path, one).items()} for one in (study, other)
    )
    asked = ("setup", "base", "train-baseline", "train-monotonic", "evaluate")
    assert shared == {name for name in asked if others[name] == places[name]}


def test_two_seeds_with_equal_weights():
    """Identical files were reported as "identical across all three seeds, confirming stability"."""
    results = FinalResults.read_file(finished_study().path("aggregate") / "final_results.json")
    with pytest.raises(CheckFailed, match="seed 42, baseline and seed 2024, baseline: equal weights_digest"):
        _require_distinct_seeds({"seed 42": Cell(results, {}), "seed 2024": Cell(results, {})})
    _require_distinct_seeds({"seed 42": Cell(results, {})})
