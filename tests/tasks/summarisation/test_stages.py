"""The stages of the summarisation study: every number follows, nothing is lost, and what was edited is refused."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from storage import durable
from storage.errors import BadInput
from storage.records import read_records
from storage.run_directory import RunDirectory
from tasks.attacks.results import UatResult
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.texts import texts_of
from tasks.monotonic.arms import measure_liveness
from tasks.stage.attempt import attempt
from tasks.summarisation.evaluate import copied, scores
from tasks.summarisation.final_results import METRICS, FinalResults
from tasks.summarisation.rewrite import attacked
from tests.tasks.language.test_pairs import drawn, network, packed
from tests.tasks.resealed import AUDIT, Edit, Stages, asked_again, edited, nothing, refused
from tests.tasks.summarisation.tiny import SMOKE, finished
from tests.tasks.tiny import Here, sentences, what_must_be_equal

MONOTONIC = "summarisation-train (monotonic)"


def results() -> FinalResults:
    return FinalResults.read_file(finished().path("summarisation-report") / "final_results.json")


def records(stage: str) -> list[dict[str, Any]]:
    return list(read_records(finished().path(stage) / "records.parquet"))


def test_the_report_has_every_number_that_was_promised_and_says_what_a_method_without_learning_gets() -> None:
    found, folder = results(), finished().path("summarisation-report")
    assert {*found.trivial} == {"lead", "other_summary"}
    assert {*found.models} == {"base", *finished().study.arms} and {*found.arms} == {*finished().study.arms}
    attacked = {*found.models, "base@0.5"}
    assert {*found.attacks["uat"].effects} == {*found.attacks["hotflip"].effects} == attacked
    assert all({*found.rouge_drops[attack]} == attacked for attack in ("uat", "hotflip"))
    assert found.order["monotonic"].verdict == found.order["per-unit-signs"].verdict == "yes"
    assert found.order["baseline"].verdict == "no" and found.order["baseline"].worst_violation_found < 0
    page = (folder / "table.md").read_text()
    assert f"the first {found.lead_words} words" in page and "another article's summary" in page
    assert "Not answered" in page or not found.arms["monotonic"].dead


def test_a_sweep_over_seeds_compares_the_arms_over_trainings_and_texts(tmp_path: Path) -> None:
    """It laid the cells side by side, and had no answer and no interval that knew of other texts."""
    root, study = Path(shutil.copytree(finished().root, tmp_path / "runs", symlinks=True)), finished().study
    *_, handle = replace(SMOKE.page, over={"seed": [study.seed, 7]}).walk(
        study, Here(root, study.name, study.execution)
    )
    found = durable.read_json(handle.run.path / "final_results.json")
    for attack in ("uat", "hotflip"):
        title = f"increase by {attack}"
        ours, theirs = (found["means"][title][arm]["values"] for arm in ("monotonic", "baseline"))
        rows = {(row["arm"], row["reference"]): row for row in found["comparisons"][title]}
        mean = sum(ours[seed] - theirs[seed] for seed in (str(study.seed), "7")) / 2
        row = rows["monotonic", "baseline"]
        assert row["mean"] == pytest.approx(mean) and row["seeds"] == 2
        assert ("monotonic", "per-unit-signs") in rows and rows["baseline", "base"]["p"] is not None
    answer = durable.read_json(handle.run.result_file)["answer"][0]
    assert found["primary"]["answer"] or "Not answered" in answer
    table = (handle.run.path / "table.md").read_text()
    assert "the arms over 2 trainings of each" in table and "## increase by hotflip" in table and "## ROUGE-1" in table


def test_arms_are_compared_at_equal_clean_loss_where_snapshots_are_kept() -> None:
    """A model that predicts worse has less to lose, and the study said so of itself without an answer."""
    (matched,) = (row for row in results().attacks["hotflip"].at_equal_loss if row.model == "monotonic")
    assert matched.covered and matched.increase_nats_per_token
    (row,) = (
        line
        for line in (finished().path("summarisation-report") / "table.md").read_text().splitlines()
        if re.match(r"\| (\*\*)?monotonic - baseline, at equal clean loss", line)
    )
    assert f"{matched.increase_nats_per_token.value:+.4f}" in row


def test_a_training_that_is_broken_off_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    handle = finished().handles[MONOTONIC]
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    execution = handle.config.execution.model_copy(update={"max_steps_per_run": 3})
    config = handle.config.model_copy(update={"execution": execution})
    ends = [attempt(handle.stage, config, copy, given).end_state for _ in range(3)]
    assert ends == ["out_of_time", "out_of_time", "finished"]
    assert what_must_be_equal(copy) == what_must_be_equal(handle.run)


@pytest.mark.parametrize("stage", ["summarisation-evaluate", "summarisation-hotflip (monotonic)"])
def test_an_evaluation_or_attack_that_is_broken_off_ends_with_the_same_records(stage: str, tmp_path: Path) -> None:
    handle = finished().handles[stage]
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    batch = {"evaluation_batch_examples": 16, "attack_batch_examples": 64}
    config = handle.config.model_copy(update={"execution": handle.config.execution.model_copy(update=batch)})
    assert attempt(handle.stage, config, copy, given).end_state == "finished"
    assert copy.result_file.read_bytes() == handle.run.result_file.read_bytes()


def test_rouge_is_the_package_s_own_on_fifty_pairs() -> None:
    texts = sentences(100)
    assert scores("", "a word", "a word")["rouge1"] == 1.0  # which loads the package as a stage does
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(METRICS, use_stemmer=True)
    for reference, written in zip(texts[:50], texts[50:], strict=True):
        theirs = scorer.score(reference, written)
        assert scores("", reference, written) == {metric: theirs[metric].fmeasure for metric in METRICS}
        lines = scorer.score(f"{reference}\n{written}", f"{written}\n{reference}")
        assert scores("", f"{reference}. {written}.", f"{written}! {reference}") == {
            metric: lines[metric].fmeasure for metric in METRICS
        }


def test_rouge_of_every_row_is_a_share() -> None:
    for row in records("summarisation-evaluate"):
        assert 0 <= row["lead_rouge1"] <= 1 and row["rouge2"] <= row["rouge1"] + 1e-9


def test_a_summary_is_what_a_plain_generate_gives_a_row_alone_and_a_loss_what_transformers_says() -> None:
    study, text = finished(), finished().path("summarisation-pairs") / "text"
    tokenizer = foreign.kept_tokenizer(text / "tokenizer")
    pairs = {pair.example_id: pair for pair in texts_of(SimpleNamespace(path=text.parent), "test")}
    model = language.load(study.path("summarisation-train (baseline)") / "model").eval()
    rows = [row for row in records("summarisation-evaluate") if row["model"] == "baseline"]
    assert len(rows) == len(pairs) == study.study.splits.test_documents
    for row in rows[:5]:
        pair = pairs[row["example_id"]]
        with torch.no_grad():
            written = model.generate(
                torch.tensor([pair.read]), num_beams=2, length_penalty=1.0, min_new_tokens=3, max_new_tokens=12,
                no_repeat_ngram_size=3, do_sample=False,
            )  # fmt: skip
            loss = model(input_ids=torch.tensor([pair.read]), labels=torch.tensor([pair.reference])).loss.item()
        assert tokenizer.decode(written[0], skip_special_tokens=True).strip() == row["written"]
        assert row["loss_sum_nats"] == pytest.approx(loss * len(pair.reference), rel=1e-5)


def test_d16_what_is_written_anew_is_written_of_prefix_trigger_and_whole_article() -> None:
    """The earlier system cut both away from long articles, and called triggers minimally effective."""
    handle = finished().handles["summarisation-rewrite"]
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    text, most = given.pop("text"), finished().study.uat.text_tokens
    trigger = UatResult.read(given["uat-base"]).gradient.best.trigger_ids
    found = [one for one in attacked(handle.config, text, given, "base") if one.attack == "uat"]
    assert len(found) == finished().study.splits.attack_evaluation_documents
    for one in found:
        prefix = len(one.clean) - 1 - min(most, len(one.pair.read) - 1 - packed_prefix())
        assert one.read == [*one.clean[:prefix], *trigger, *one.clean[prefix:]]


def packed_prefix() -> int:
    return len(results().packed["train"].prefix_ids)


def test_a_base_model_that_does_not_read_its_article_ends_the_study(tmp_path: Path) -> None:
    """In a pilot seven of seven trainings used nothing of the article, and no loss said so."""
    handles = SMOKE.run(tmp_path / "runs", SMOKE.study("base_checks.max_ratio_to_another_summary=0.001"))
    outcome = handles["summarisation-base"].outcome
    assert outcome is not None and outcome.end_state == "check_failed"
    assert "another_summary" in outcome.text
    assert not any(handle.run.path.exists() for label, handle in handles.items() if "train" in label)


def test_rouge_leaves_the_stream_open_that_it_found_as_stderr() -> None:
    """absl, which the package loads, closed it when Prefect set logging up anew: a study's own output ended there."""
    code = (
        "import io, logging.config, sys; seen = sys.stderr = io.StringIO(); "
        "from tasks.summarisation.evaluate import scores; scores('', 'a', 'a'); sys.stderr = sys.__stderr__; "
        "logging.config.dictConfig({'version': 1}); sys.exit(seen.closed)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_d16_a_prefix_that_leaves_no_room_for_what_is_attacked_is_refused_before_any_training(tmp_path: Path) -> None:
    handles = SMOKE.run(tmp_path / "runs", SMOKE.study("prefix=please do write a short summary of this article here"))
    outcome = handles["summarisation-pairs"].outcome
    assert outcome is not None and outcome.end_state == "bad_input"
    assert "raise article_tokens, or lower uat.text_tokens" in outcome.text


def test_layers_live_by_their_tokens_and_not_by_the_padding_of_a_batch(tmp_path: Path) -> None:
    """A rise of 0.94 nats at a batch of one was 1.82 at sixteen, with ranks at the edge of collapse."""
    pairs, model = packed(tmp_path, drawn(24)), network("copying")
    for block in [*model.encoder.block, *model.decoder.block]:
        torch.nn.init.normal_(block.layer[-1].DenseReluDense.wo.weight, std=1.0)
    alone, together = (
        measure_liveness(model, "mlp_both", partial(language.validation_loss, blocks=pairs, batch_size=size))
        for size in (1, 24)
    )
    assert alone.rise_nats_per_token == pytest.approx(together.rise_nats_per_token, rel=1e-4)
    assert alone.effective_rank == pytest.approx(together.effective_rank, rel=1e-4)


@pytest.mark.parametrize(("written", "share"), [("a b c", 1.0), ("b a c", 0.0), ("x", 0.0), ("", 0.0), ("a b x", 0.5)])
def test_the_copied_share_counts_neighbours(written: str, share: float) -> None:
    assert copied(written, "a b c d") == share


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("uat.text_tokens=39", "article_tokens"),
        ("hotflip.text_tokens=40", "article_tokens"),
        ("hotflip.flips=13", "lower it, or raise hotflip.text_tokens$"),
        ("arms=[baseline,monotonic,shifted]", "shifted"),
        ("learning_rates=[0.1,0.2]", "learning_rates"),
        ("decoding.min_tokens=13", "summary_tokens"),
        ("constraint.variant=gated_all", "per-unit-signs"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(change: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        SMOKE.study(change)


def other_losses(stages: Stages) -> None:
    for row in stages["evaluation"]["rows"]:
        row["loss_sum_nats"] += 1.0


def transferred_more(stages: Stages) -> None:
    for row in stages["transfer"]["rows"]:
        if (row["attack"], row["search"], row["found_for"]) == ("hotflip", "gradient", "base"):
            row["loss_sum_nats"] += 1.0 if row["model"] == "baseline" else 0.0


def other_summary(stages: Stages) -> None:
    for row in stages["evaluation"]["rows"]:
        row["written"] += " more"


def other_summary_under_attack(stages: Stages) -> None:
    for row in stages["rewritten"]["rows"]:
        row["written"] += " more"


def one_article_less(stages: Stages) -> None:
    del stages["rewritten"]["rows"][0]


def equal_arms(role: str, path: Path) -> None:
    if role == "monotonic":
        theirs = finished().path("summarisation-train (baseline)") / "model" / "model.safetensors"
        (path / "model" / "model.safetensors").write_bytes(theirs.read_bytes())


def other_loss_of_another(stages: Stages) -> None:
    for row in stages["evaluation"]["rows"]:
        row["another_loss_sum_nats"] += 1.0


def other_lead(stages: Stages) -> None:
    """Lead-n at 0 passed audit and report."""
    for row in stages["evaluation"]["rows"]:
        row["lead_rouge1"] = 0.0


REFUSED: list[tuple[str, Edit, str]] = [
    *(("report", edit, said) for edit, said in AUDIT),
    ("audit", other_losses, "evaluate, base, document"),
    ("audit", other_loss_of_another, "another summary, base, document"),
    (
        "audit",
        edited("monotonic", {"constraint.min_weight": -1.0}),
        "min weight of the constrained weights",
    ),
    ("audit", edited("monotonic", {"sublayers.loss_with_means_nats_per_token": 9.0}), "with its sublayers replaced"),
    ("report", edited("uat-base", {"gradient.forward_sequences": 1}), "uat on each model: forwards"),
    ("audit", edited("base", {"validation_losses.another_summary": 9.0}), "the validation loss of another_summary"),
    ("audit", transferred_more, "transfer of hotflip (gradient search) from base to baseline"),
    ("audit", other_lead, "lead_rouge1 of base on"),
    ("audit", other_summary, "the summary that base writes of"),
    ("audit", other_summary_under_attack, "by base under uat"),
    ("audit", one_article_less, "wrote of every attacked article"),
    ("report", one_article_less, "wrote of every article that uat attacked"),
]


@pytest.mark.parametrize(("stage", "edit", "said"), REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_what_was_edited_is_refused_by_name(stage: str, edit: Edit, said: str, tmp_path: Path) -> None:
    assert said in refused(stage, SMOKE, tmp_path, edit)


def test_two_arms_of_the_same_weights_are_refused(tmp_path: Path) -> None:
    assert "weights of the arms" in refused("report", SMOKE, tmp_path, nothing, equal_arms)


@pytest.mark.parametrize("stage", ["audit", "report"])
def test_what_was_not_edited_passes(stage: str, tmp_path: Path) -> None:
    asked_again(stage, SMOKE, tmp_path, nothing)


def test_articles_that_are_cut_are_counted() -> None:
    assert results().packed["train"].articles_cut > 0
