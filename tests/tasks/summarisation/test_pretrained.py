"""A T5 from a folder, with a tokenizer of sentencepiece pieces: what the profiles of the hub's models go through."""

import json
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from storage.records import read_records
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.texts import texts_of
from tasks.language.tokenizer import text_of
from tasks.monotonic.certificate import certify_sublayer
from tasks.monotonic.sublayer import feed_forward_sublayers
from tasks.stage.attempt import attempt
from tasks.summarisation.audit import alone, as_good
from tasks.summarisation.evaluate import evaluate
from tasks.summarisation.report import document
from tasks.summarisation.stages import AUDITED
from tests.tasks.language.tiny_t5 import write_t5
from tests.tasks.summarisation.test_stages import results
from tests.tasks.summarisation.tiny import SMOKE, finished
from tests.tasks.tiny import stage_run


def study_of(folder: Path, *changes: str) -> Any:
    model = json.dumps({"source": "directory", "path": str(folder)})
    few = ("validation", "test", "attack_search", "attack_evaluation")
    sizes = [f"splits.{name}_documents=2" for name in few]
    return SMOKE.study(
        f"model={model}",
        "arms=[baseline,monotonic]",
        "hotflip.documents=2",
        "uat.iterations=1",
        "uat.restarts=1",
        *sizes,
        *changes,
    )


def run_some(root: Path, study: Any, labels: Collection[str]) -> dict[str, Any]:
    """The handles of the page by label; those of `labels` were run, on the base model alone."""
    handles = SMOKE.run_until("summarisation-base", root, study)
    assert handles["summarisation-base"].outcome.end_state == "finished", handles["summarisation-base"].outcome.text
    for label in labels:
        handle = handles[label]
        known = {"text": "summarisation-pairs", "model": "summarisation-base", "base": "summarisation-base"}
        given = {role: handles[known[role]].as_input() for role in handle.inputs if role in known}
        outcome = attempt(handle.stage, handle.config, handle.run, given)
        assert outcome.end_state == "finished", outcome.text
    return handles


def test_a_pretrained_t5_with_sentencepiece_pieces_is_read_judged_and_attacked(tmp_path: Path) -> None:
    labels = ["summarisation-uat (base)", "summarisation-hotflip (base)"]
    handles = run_some(tmp_path / "runs", study_of(write_t5(tmp_path / "t5")), labels)
    text = handles["summarisation-pairs"].run.path / "text"
    tokenizer = foreign.kept_tokenizer(text / "tokenizer")
    (first, *_), model = texts_of(SimpleNamespace(path=text.parent), "test"), language.load(tmp_path / "t5").eval()
    assert tokenizer.convert_ids_to_tokens(first.read[:1])[0].startswith("▁")
    assert (first.read[-1], first.reference[-1], model.config.decoder_start_token_id) == (1, 1, 0)
    pairs, base = (handles[label].as_input() for label in ("summarisation-pairs", "summarisation-base"))
    run = stage_run(tmp_path / "evaluate")
    evaluate(run, handles["summarisation-evaluate"].config, pairs, base=base)
    rows = {row["example_id"]: row for row in read_records(run.directory / "records.parquet")}
    loss = model(input_ids=torch.tensor([first.read]), labels=torch.tensor([first.reference])).loss.item()
    assert rows[first.example_id]["loss_sum_nats"] == pytest.approx(loss * len(first.reference), rel=1e-5)
    attacked = list(read_records(handles[labels[1]].run.path / "records.parquet"))
    written = {token for row in attacked for token in (*row["replacements"], *row["blind_replacements"])}
    assert written and not written & {*tokenizer.all_special_ids} and max(written) < len(tokenizer)


def test_no_theorem_is_claimed_for_a_gated_t5(tmp_path: Path) -> None:
    """flan-T5 and v1.1: the report says why, on its first screen, in place of a claim."""
    study = study_of(write_t5(tmp_path / "t5", gated=True), "constraint.variant=gated_all")
    constrain = "summarisation-constrain (non-negative-positive-part)"
    model = language.load(run_some(tmp_path / "runs", study, [constrain])[constrain].run.path / "model")
    found = certify_sublayer(feed_forward_sublayers(model.eval(), "gated_all")[0])
    assert found.certified != "yes" and "no theorem covers" in found.reason
    known = results()
    facts = known.order["monotonic"].model_copy(update={"verdict": found.certified, "reason": found.reason})
    told = document(known.model_copy(update={"order": known.order | {"monotonic": facts}})).markdown()
    assert "No sublayer of monotonic may be called monotone: a gated sublayer" in told.partition("## ")[0]
    assert "may be called monotone" not in document(known).markdown()


def test_a_text_of_the_same_score_passes_the_audit_and_another_does_not(tmp_path: Path) -> None:
    """On a GPU rounding may decide between beams that tie, which ended studies whose numbers were right."""
    text = finished().path("summarisation-pairs") / "text"
    tokenizer = foreign.kept_tokenizer(text / "tokenizer")
    model = language.load(finished().path("summarisation-train (baseline)") / "model").eval()
    config = finished().handles["summarisation-audit"].config
    decoding = config.decoding.model_copy(update={"min_tokens": 1})
    config = config.model_copy(update={"summary_tokens": 1, "decoding": decoding})
    read = texts_of(SimpleNamespace(path=text.parent), "test")[0].read
    best = alone(model, tokenizer, config, read)
    texts = [text_of(tokenizer, [token]) for token in range(len(tokenizer))]
    kept = next(text for text in texts[300:] if text.strip() == text != best)
    assert as_good(model, tokenizer, config, "one summary", read, best).recorded == 1.0
    other = as_good(model, tokenizer, config, "one summary", read, kept)
    assert abs(other.recorded - other.computed) > AUDITED["summaries"]
    tied = [token for token, text in enumerate(texts) if text.strip() in (best, kept)]
    with torch.no_grad():  # from here on these tokens differ in nothing but their numbers
        logits = model(input_ids=torch.tensor([read]), decoder_input_ids=torch.tensor([[0]])).logits[0, 0, tied]
        model.shared.weight[tied] = model.shared.weight[tied[int(logits.argmax())]].clone()
    for same in (best, kept):
        found = as_good(model, tokenizer, config, "one summary", read, same)
        assert abs(found.recorded - found.computed) < AUDITED["summaries"]
