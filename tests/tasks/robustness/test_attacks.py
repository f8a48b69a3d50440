"""uat and hotflip as stages: every model on the same texts, records that can be checked, and no kill that shows."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from storage.errors import BadInput
from tasks.attacks.scoring import Victim
from tasks.attacks.texts import attacked_texts
from tasks.attacks.trigger import TriggerSearch, control_triggers
from tasks.attacks.vocabulary import round_trips, text_of, usable_tokens
from tasks.language.model import load
from tasks.robustness import hotflip as hotflip_stage
from tests.records import plain_digest
from tests.tasks.tiny import FinishedStudy, Here, finished_study, handles_of

MODELS = {"base": "base", "baseline": "train-baseline", "monotonic": "train-monotonic"}


@pytest.fixture(scope="module")
def study() -> FinishedStudy:
    return finished_study()


def rows_of(study: FinishedStudy, stage: str) -> list[dict]:
    return pq.read_table(study.path(stage) / "records.parquet").to_pylist()


def tokenizer_of(study: FinishedStudy):
    return AutoTokenizer.from_pretrained(study.path("setup") / "text" / "tokenizer")


def victim_of(study: FinishedStudy, model: str, batch: int = 5) -> Victim:
    return Victim(load(study.path(MODELS[model]) / "model"), study.result("setup")["end_of_text_id"], batch)


@pytest.mark.parametrize(("stage", "documents"), [("uat", 5), ("hotflip", 4)])
def test_every_model_is_attacked_on_the_same_texts_of_attack_evaluation(study, stage, documents):
    split = pq.read_table(study.path("setup") / "text" / "attack-evaluation.parquet").to_pylist()[:documents]
    rows = rows_of(study, stage)
    for model in MODELS:
        own = [row["example_id"] for row in rows if row["model"] == model]
        assert own == [row["example_id"] for row in split]
    assert len(rows) == 3 * documents
    assert study.result(stage)["documents"] == documents and study.result(stage)["split"] == "attack-evaluation"
    assert study.result(stage)["records_digest"] == plain_digest(rows)


@pytest.mark.parametrize("stage", ["uat", "hotflip"])
def test_every_model_had_the_same_budget_counted(study, stage):
    spent = [(own["forward_sequences"], own["backward_sequences"]) for own in study.result(stage)["models"].values()]
    assert len(spent) == 3 and len(set(spent)) == 1 and min(spent[0]) > 0


def test_uat_records_are_the_losses_of_the_texts_own_tokens(study):
    texts = {
        t.example_id: t.tokens
        for t in attacked_texts(study.input("setup"), tokenizer_of(study), "attack-evaluation", 12)
    }
    for model, trigger in study.result("uat")["models"].items():
        victim = victim_of(study, model)
        usable = usable_tokens(tokenizer_of(study), len(victim.embeddings_VD))
        controls = control_triggers(usable, study.study.uat, study.study.seed)
        for row in (row for row in rows_of(study, "uat") if row["model"] == model):
            tokens = texts[row["example_id"]]
            prefixes = [[], trigger["trigger_ids"], *controls]
            clean, attacked, *control = (
                loss.sum().item() for loss in victim.losses(prefixes, [tokens] * len(prefixes))
            )
            assert row["tokens_scored"] == row["text_tokens"] == len(tokens) == 12
            assert row["text_clean_loss_sum_nats"] == row["clean_loss_sum_nats"]
            assert row["control_tokens_scored"] == 24
            assert row["clean_loss_sum_nats"] == pytest.approx(clean, rel=1e-5)
            assert row["loss_sum_nats"] == pytest.approx(attacked, rel=1e-5)
            assert row["control_loss_sum_nats"] == pytest.approx(sum(control), rel=1e-5)
            assert row["control_clean_loss_sum_nats"] == pytest.approx(2 * clean, rel=1e-5)


def test_the_trigger_is_the_best_restart_on_the_search_split_and_given_as_ids_and_text(study):
    tokenizer = tokenizer_of(study)
    for trigger in study.result("uat")["models"].values():
        best = max(trigger["restarts"], key=lambda restart: restart["search_loss_nats_per_token"])
        assert trigger["trigger_ids"] == best["trigger_ids"] and len(best["trigger_ids"]) == 3
        assert trigger["search_loss_nats_per_token"] == best["search_loss_nats_per_token"]
        assert trigger["search_loss_nats_per_token"] > trigger["search_loss_clean_nats_per_token"]
        assert trigger["trigger_text"] == text_of(tokenizer, best["trigger_ids"])
        assert trigger["trigger_round_trips"] == round_trips(tokenizer, best["trigger_ids"])


def test_hotflip_records_say_what_was_replaced_and_what_it_did_to_the_others(study):
    tokenizer = tokenizer_of(study)
    texts = {
        t.example_id: t.tokens for t in attacked_texts(study.input("setup"), tokenizer, "attack-evaluation", 14, 4)
    }
    for row in rows_of(study, "hotflip"):
        tokens = list(texts[row["example_id"]])
        victim = victim_of(study, row["model"])
        changed = list(tokens)
        for position, token in zip(row["positions"], row["replacements"], strict=True):
            assert changed[position] != token
            changed[position] = token
        kept = [i for i in range(len(tokens)) if i not in row["positions"]]
        clean, attacked = victim.losses([[], []], [tokens, changed])
        assert row["flips"] == len(row["positions"]) <= 2 and row["tokens_scored"] == len(kept)
        assert row["loss_sum_nats"] == pytest.approx(attacked[kept].sum().item(), rel=1e-5)
        assert row["clean_loss_sum_nats"] == pytest.approx(clean[kept].sum().item(), rel=1e-5)
        risen = (row["loss_sum_nats"] - row["clean_loss_sum_nats"]) / len(kept)
        relative = risen / (clean.sum().item() / len(tokens))
        assert row["success"] == (relative > study.study.hotflip.success_relative_increase)
        assert row["round_trips"] == round_trips(tokenizer, changed)
        assert row["control_tokens_scored"] == 2 * (14 - 2) and 0 <= row["control_successes"] <= 2
        assert row["text_tokens"] == len(tokens) == 14
        assert row["text_clean_loss_sum_nats"] == pytest.approx(clean.sum().item(), rel=1e-5)


def test_the_control_of_hotflip_is_the_same_for_every_model_whatever_the_attack_found(study):
    doses = {(row["model"], row["control_tokens_scored"]) for row in rows_of(study, "hotflip")}
    assert doses == {(model, 2 * (14 - 2)) for model in MODELS}


def unfinish(study: FinishedStudy, stage: str, folder: Path) -> FinishedStudy:
    """A copy of the study in which `stage` was never started."""
    copied = study.copy(folder)
    shutil.rmtree(copied.path(stage))
    return FinishedStudy(copied.root, copied.study, handles_of(copied.root, copied.study))


@pytest.mark.parametrize(("stage", "interval"), [("uat", 1), ("uat", 3), ("uat", 7), ("hotflip", 1), ("hotflip", 5)])
def test_an_attack_that_is_stopped_again_and_again_ends_with_the_same_bytes(
    study, tmp_path, monkeypatch, stage, interval
):
    calls = 0

    def then_stop(work):
        def counted(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls % (interval + 1) == interval:
                os.kill(os.getpid(), signal.SIGTERM)
            return work(*args, **kwargs)

        return counted

    monkeypatch.setattr(TriggerSearch, "step", then_stop(TriggerSearch.step))
    monkeypatch.setattr(hotflip_stage, "flip", then_stop(hotflip_stage.flip))
    copied = unfinish(study, stage, tmp_path / "runs")
    ends = []
    while not ends or ends[-1] == "sigterm":
        ends.append(handles_of(copied.root, study.study, Here)[stage].outcome.end_state)
        assert len(ends) < 60
    assert ends[-1] == "finished" and len(ends) >= 3
    for name in ("records.parquet", "result.json"):
        assert (copied.path(stage) / name).read_bytes() == (study.path(stage) / name).read_bytes()


def test_uat_goes_on_within_a_restart(study, tmp_path, monkeypatch):
    copied = unfinish(study, "uat", tmp_path / "runs")
    steps = []
    real = TriggerSearch.step

    def counted(search):
        steps.append(search.state["iteration"])
        if len(steps) == 7:  # in the middle of the second restart
            os.kill(os.getpid(), signal.SIGTERM)
        real(search)

    monkeypatch.setattr(TriggerSearch, "step", counted)
    assert handles_of(copied.root, study.study, Here)["uat"].outcome.end_state == "sigterm"
    assert handles_of(copied.root, study.study, Here)["uat"].outcome.end_state == "finished"
    assert steps == [0, 1, 2, 3] * 6, "no iteration was done twice"


def test_a_checkpoint_that_a_kill_left_behind_is_gone_on_from(study, tmp_path, monkeypatch):
    """As after SIGKILL: iterations since the last checkpoint are done again, and the bytes are the same."""
    copied = unfinish(study, "uat", tmp_path / "runs")
    real, steps = TriggerSearch.step, []

    def die(search):
        steps.append(search)
        if len(steps) == 11:
            raise MemoryError("killed")
        real(search)

    with monkeypatch.context() as patch:
        patch.setattr(TriggerSearch, "step", die)
        assert handles_of(copied.root, study.study, Here)["uat"].outcome.end_state == "crashed"
    assert handles_of(copied.root, study.study, Here)["uat"].outcome.end_state == "finished"
    for name in ("records.parquet", "result.json"):
        assert (copied.path("uat") / name).read_bytes() == (study.path("uat") / name).read_bytes()


def test_the_end_of_a_text_is_cut_and_never_its_beginning(study):
    tokenizer = tokenizer_of(study)
    whole = attacked_texts(study.input("setup"), tokenizer, "attack-search", 10_000)
    short = attacked_texts(study.input("setup"), tokenizer, "attack-search", 7)
    assert [t.tokens[:7] for t in whole] == [t.tokens for t in short] and max(len(t.tokens) for t in whole) > 20


def test_a_document_with_one_token_is_named_and_not_left_out(study, tmp_path):
    copied = study.copy(tmp_path / "runs")
    file = copied.path("setup") / "text" / "attack-search.parquet"
    rows = pq.read_table(file).to_pylist()
    rows[1]["text"] = "b"
    pq.write_table(pa.Table.from_pylist(rows), file)
    with pytest.raises(BadInput, match=r"'b' of split attack-search .* has 1 token"):
        attacked_texts(copied.input("setup"), tokenizer_of(copied), "attack-search", 12)
