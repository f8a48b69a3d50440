"""The plan says before any work what becomes of each module, on machines that are not there."""

import pytest
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from storage.errors import BadInput, CheckFailed
from tasks.influence.kept import degraded, read, require_usable
from tasks.influence.plan import Limits, Machine, factor_plan, markdown, this_machine
from tests.tasks.influence.models import HERE, language, t5_without_weights

GB = 10**9


@pytest.mark.parametrize(
    ("machine", "treatment", "blocks", "why"),
    [
        (Machine(16 * GB), "blocks", 7, "10,194 s"),
        (Machine(48 * GB, (12, 2)), "blocks", 2, "cuSOLVER takes at most 23,000"),
        (Machine(48 * GB, (13, 0)), "blocks", 2, "it needs 49.5 GB of 48.0"),
        (Machine(80 * GB, (12, 2)), "blocks", 2, "cuSOLVER takes at most 23,000"),
        (Machine(80 * GB, (13, 0)), "ekfac", 1, "fits"),
        (Machine(80 * GB, (13, 0), solves=8_000), "blocks", 5, "cuSOLVER takes at most 8,000"),
    ],
)
def test_the_last_of_145_modules_is_solved_where_it_can_be(machine, treatment, blocks, why):
    plan = factor_plan(t5_without_weights(), machine, Limits(kinds=("linear",)))
    used = [one for one in plan if one.treatment != "excluded"]
    assert len(used) == 145 and {one.treatment for one in used[:-1]} == {"ekfac"}
    last = used[-1]
    assert (last.name, last.rows, last.columns, last.treatment) == ("lm_head", 32_128, 512, treatment)
    assert -(-last.rows // last.row_block) == blocks and why in last.why and last.column_block == 512
    assert last.chosen == (treatment == "ekfac")
    assert f" | linear | 32,128 x 512 | {last.bytes / GB:.3f} | {last.seconds:.1f} | {treatment} | " in markdown(plan)


def test_memory_for_no_block_leaves_the_diagonal_and_for_no_gradient_nothing():
    model = nn.Linear(600, 400)
    [diagonal] = factor_plan(model, Machine(3_000_000), Limits(seconds=1e-7))
    assert (diagonal.treatment, diagonal.chosen, diagonal.row_block) == ("diagonal", False, 1)
    _, excluded = factor_plan(nn.Sequential(nn.Linear(2, 2), model), Machine(1_000_000))
    assert (excluded.treatment, excluded.chosen) == ("excluded", False) and "0.0 GB of 0.0" in excluded.why


def test_one_hot_tokens_and_padding_are_counted_where_the_plan_is_told_of_them():
    model = nn.Sequential(nn.Embedding(80_000, 512), nn.Linear(512, 3))
    embedding, linear = factor_plan(model, Machine(64 * GB), Limits(batch=32, positions=1_000))
    assert embedding.bytes == 12 * 80_000 * 512 + 4 * 32_000 * 80_512 and "one-hot in a batch: 10.3 GB" in embedding.why
    assert linear.bytes > 4 * 32_000 * 512
    embedding, _ = factor_plan(model, Machine(8 * GB), Limits(batch=32, positions=1_000))
    assert embedding.treatment == "excluded" and "and 32 x 1,000 positions need 10.8 GB of 8.0" in embedding.why


def test_tied_weights_are_one_entry_named_after_the_linear_one():
    plan = {one.name: one for one in factor_plan(language(tied=True).model, HERE)}
    assert [*plan] == ["head", "query", "value"] and plan["head"].modules == ["head", "embedding"]
    assert [one.name for one in factor_plan(language().model, HERE)] == ["embedding", "head", "query", "value"]


def test_what_is_left_out_on_purpose_is_told_apart_from_what_had_to_be():
    model = nn.ModuleDict({"skipped": nn.Linear(2, 2), "other": nn.Conv2d(4, 4, 3), "kept": nn.Linear(2, 2)})
    plan = factor_plan(model, HERE, Limits(exclude=("skip*",)))
    assert [(one.treatment, one.chosen) for one in plan] == [("excluded", True), ("ekfac", True), ("excluded", False)]
    assert plan[2].why == "no factors of a Conv2d"
    for wrong, limits in ((nn.ReLU(), Limits()), (model, Limits(kinds=["lineer"]))):
        with pytest.raises(BadInput, match=r"no module to compute influence by, of the kinds line.*there are linear"):
            factor_plan(wrong, HERE, limits)


def test_a_weight_of_a_module_that_is_not_known_is_told_and_counts_as_degraded(tmp_path):
    """GPT-2 keeps all but its embeddings in Conv1D: influence by what is left would rank as if it were of the model."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1, n_positions=6)).eval()
    plan = {one.name: one for one in factor_plan(model, HERE)}
    unknown = [name for name in plan if ".attn." in name or ".mlp." in name]
    assert len(unknown) == 4 and all(name.endswith(".weight") for name in unknown)
    assert {(plan[name].treatment, plan[name].chosen, plan[name].why) for name in unknown} == {
        ("excluded", False, "no factors of a Conv1D")
    }
    with pytest.raises(CheckFailed, match=r"4 of 6 \(transformer\.h\.0\.attn"):
        require_usable([read(tmp_path, one) for one in plan.values()], 0.05)
    asked = factor_plan(model, HERE, Limits(exclude=("transformer.h.*",)))
    assert {one.chosen for one in asked} == {True} and not degraded([read(tmp_path, one) for one in asked])


def test_this_machine_is_a_cpu_with_memory():
    machine = this_machine("cpu")
    assert machine.cuda is None and machine.memory_bytes > GB
