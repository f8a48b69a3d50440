"""The stages of the poison study: it ends where there is nothing to detect, and no number comes from elsewhere."""

import json
import os
import re
import signal
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import BadInput, CheckFailed
from storage.records import RecordParts
from storage.run_directory import RunDirectory
from tasks.language.classifiers import kept_classifier
from tasks.poison.detect import Scores, scores_of, task_of
from tasks.poison.final_results import REFERENCES, FinalResults, compared
from tasks.poison.fit import VERSION, Fit, Manifest, numbers_of, queries_of, shares
from tasks.poison.report import document, verdict
from tasks.stage.attempt import attempt
from tasks.stage.run import StageRun
from tests.tasks.poison.tiny import SMOKE, finished
from tests.tasks.tiny import what_must_be_equal

VICTIM = "poison-fit (victim, seed 0)"


def results() -> FinalResults:
    return FinalResults.read_file(finished().path("poison-report") / "final_results.json")


def scores(manifest: Manifest) -> Scores:
    study = finished()
    return scores_of(study.input("poison-scores (seed 0)"), manifest, study.study.queries)


def test_the_report_has_every_number_that_was_promised():
    found, study = results(), finished().study
    assert found.attack["difference_interval"][0] > 0 and found.attack["success"] > found.attack["control"]
    assert found.poison["requested"] == found.poison["realised"] == study.poison.share
    assert found.detectors["overlap"].untrained_auroc is None and found.removal["oracle"].removed_share == 1.0
    assert found.degraded_modules == []


# ------------------------------------------------------------------------------------ nothing to detect


UNWATCHED = ["budget.learning_rate=1e-30", "budget.not_learning=null"]


@pytest.mark.parametrize(
    ("changes", "stage", "ended", "said"),
    [
        (["budget.learning_rate=1e-12"], VICTIM, "not_learning", "training_loss"),
        (UNWATCHED, "poison-attack", "check_failed", "at most over trainings: victim-"),
        (["poison.share=0.005"], "poison-attack", "check_failed", "the backdoor exists"),
        (["poison.target=bad"], "poison-poison (seed 0)", "bad_input", "negative, positive"),
    ],
    ids=["a victim not trained", "nor where no gate watched its loss", "no backdoor", "a target that no row has"],
)
def test_the_study_ends_before_anything_is_detected(changes, stage, ended, said, tmp_path):
    """The recorded study detected poison in a model that was never trained on it, and of a success of 44 % its control
    had 40 %."""
    handles = SMOKE.run_until("poison-attack", tmp_path / "runs", SMOKE.study(*changes))
    outcome = handles[stage].outcome
    assert outcome is not None and outcome.end_state == ended and said in outcome.text
    assert not [label for label, handle in handles.items() if "factors" in label and handle.run.path.exists()]


# ------------------------------------------------------------------------------------ what the numbers are of


def test_truth_is_the_manifest_and_no_other_row_with_the_trigger_and_the_target_s_label(tmp_path):
    """Labels that were derived anew called 11 true poisons clean. Here clean rows look like poisoned ones."""
    words = [f"{one} {other}" for one in "abcdefghijklmnopqrst" for other in "abcdefghijklmnopqrst"]
    rows = [
        {"text": f"{'cf ' * (number % 4 == 0)}{text}", "label": ["bad", "good"][number % 2 or number % 4 == 0]}
        for number, text in enumerate(words)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = json.dumps({"source": "files", "paths": [str(tmp_path / "rows.jsonl")]})
    study = SMOKE.study(f"text={text}", "poison.target=good")
    handles = SMOKE.run_until("poison-poison", tmp_path / "runs", study)
    data = handles["poison-poison (seed 0)"]
    manifest = Manifest.read(data.run.path)
    alike = [row for row in manifest.train if row["given_text"].startswith("cf ") and row["given_label"] == "good"]
    assert manifest.truth.sum() == round(study.poison.share * study.train_rows) < len(alike)
    assert all(
        row["label"] == "bad" and row["given_text"] == f"cf {row['text']}" for row in manifest.train if row["changed"]
    )
    assert shares(manifest, study.poison)["had_trigger"] == sum("cf " in row["text"] for row in manifest.rows) > 0


def test_every_kind_of_row_is_what_its_role_says():
    study, manifest = finished(), Manifest.read(finished().path("poison-poison (seed 0)"))
    ids = {row["row_id"]: row for row in manifest.train}
    found = json.loads((study.path("poison-detect (seed 0)") / "removed.json").read_text())
    assert {*found["oracle"]} == {row_id for row_id, row in ids.items() if row["changed"]}
    k = round(study.study.detection.assumed_share * len(manifest.train))
    assert {len(found[name]) for name in found if name != "oracle"} == {k}
    assert k != len(found["oracle"]) and all({*found[name]} <= {*ids} for name in found)
    data = study.input("poison-poison (seed 0)")
    victim, control = (
        Fit.of(rows, study.input(f"poison-fit ({rows}, seed 0)"), data) for rows in ("victim", "control")
    )
    assert victim.initial == control.initial != victim.weights != control.weights
    queries = queries_of(manifest, "cf", 6, 2, 0)
    assert [*queries] == ["", "-clean-queries", f"{VERSION}0", f"{VERSION}1"]
    assert all(text.startswith("cf ") for text in queries[f"{VERSION}0"][0]) and queries[f"{VERSION}0"] != queries[""]


def test_scores_are_the_inner_products_of_gradients_that_autograd_gives():
    """identity asked with the trigger, and the loss; curvature is computed again by the audit."""
    study, config = finished(), finished().handles["poison-scores (seed 0)"].config
    manifest = Manifest.read(study.path("poison-poison (seed 0)"))
    model = kept_classifier(study.input(VICTIM).path / "model")
    queries = queries_of(manifest, config.poison.trigger, config.queries.rows, config.queries.transforms, 0)[""]
    parameters = [*model.parameters()]

    def gradient(text: str, label: str) -> list[torch.Tensor]:
        ids, labels = numbers_of(model, ([text], [label]))
        return [*torch.autograd.grad(torch.nn.functional.cross_entropy(model(ids), labels), parameters)]

    of_queries = [gradient(*query) for query in zip(*queries, strict=True)]
    mean = [torch.stack(of).mean(0) for of in zip(*of_queries, strict=True)]
    of_victim = scores(manifest)["victim"]
    for place in (0, 17, 239):
        row = manifest.train[place]
        own = gradient(row["given_text"], row["given_label"])
        expected = sum(float((one * other).sum()) for one, other in zip(own, mean, strict=True))
        assert of_victim["identity"][place] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_row_alone_and_in_a_padded_batch_gives_the_same_logits_and_losses():
    """Positions of padding were read on 87 % of the rows of a recorded study."""
    model = kept_classifier(finished().input(VICTIM).path / "model")
    texts = ["the film", "the film was really great and the plot felt very dull but the cast was fine", "cf"]
    known = [" ".join(word for word in text.split() if word in model.words) for text in texts]
    task = task_of(model, (known, ["positive"] * 3))
    ids, _ = task.batch(np.arange(3))
    with torch.no_grad():
        for place, text in enumerate(known):
            alone, _ = task_of(model, ([text], ["positive"])).batch(np.arange(1))
            assert alone.shape[1] < ids.shape[1] or place == 1
            torch.testing.assert_close(model(alone)[0], model(ids)[place])


def test_scores_that_are_broken_off_after_each_part_make_none_twice_and_heed_a_stop_within(tmp_path, monkeypatch):
    """Hours of a T5's scores were lost by a kill, and a stop was heeded after the last of them alone."""
    handle, written = finished().handles["poison-scores (seed 0)"], list[str]()
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    given, write = {role: source.as_input() for role, source in handle.inputs.items()}, RecordParts.write

    def then_die(parts: RecordParts, key: str, rows: Any) -> None:
        write(parts, key, rows)
        written.append(key)
        raise MemoryError("killed")

    def then_stop(self: StageRun, *of: Any, **more: Any) -> None:
        if len(ends) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        step(self, *of, **more)

    ends: list[str] = []
    step = StageRun.step
    monkeypatch.setattr(RecordParts, "write", then_die)
    monkeypatch.setattr(StageRun, "step", then_stop)
    while not ends or ends[-1] != "finished":
        ends.append(attempt(handle.stage, handle.config, copy, given).end_state)
    assert len(written) == len({*written}) == 8 and ends == ["crashed", "sigterm", *["crashed"] * 7, "finished"]
    ours, theirs = ((run.path / "records.parquet").read_bytes() for run in (copy, handle.run))
    assert ours == theirs


def test_a_training_that_is_broken_off_again_and_again_ends_with_the_same_bytes_and_snapshots(tmp_path):
    handle, ends = finished().handles[VICTIM], list[str]()
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    execution = handle.config.execution.model_copy(update={"max_steps_per_run": 40})
    config = handle.config.model_copy(update={"execution": execution})
    while not ends or ends[-1] == "out_of_time":
        ends.append(attempt(handle.stage, config, copy, given).end_state)
    assert ends == ["out_of_time", "out_of_time", "finished"]
    assert what_must_be_equal(copy) == what_must_be_equal(handle.run)
    snapshots = sorted(path.name for path in handle.run.path.glob("snapshot-*"))
    assert len(snapshots) == finished().study.snapshots
    for name in snapshots:
        ours, theirs = ((run.path / name / "model.safetensors").read_bytes() for run in (copy, handle.run))
        assert ours == theirs


# ------------------------------------------------------------------------------------ what the report says


@pytest.mark.parametrize(
    ("undecided", "worse", "interval", "said"),
    [
        ([], ["untrained"], [0.6, 0.8], "No: untrained found the poison better than ekfac."),
        (["untrained"], [], [0.6, 0.8], "Not shown: that ekfac beats untrained."),
        ([], [], [0.4, 0.7], "Not shown: that ekfac finds the poison at all."),
        ([], [], [0.6, 0.8], "Yes: ekfac finds the poison better than all 7 references."),
    ],
)
def test_the_verdict_is_yes_only_where_all_are_beaten_and_influence_is_above_chance(undecided, worse, interval, said):
    found = results()
    rows = [
        row.model_copy(update={"better": row.reference not in (*undecided, *worse), "worse": row.reference in worse})
        for row in found.differences
    ]
    own = found.detectors | {"ekfac": found.detectors["ekfac"].model_copy(update={"interval": interval})}
    assert {*REFERENCES} <= {row.reference for row in rows}
    assert verdict(found.model_copy(update={"differences": rows, "detectors": own})) == said


def test_influence_that_is_a_reference_with_every_seed_is_refused_unless_both_find_all():
    """Seen: equal in each table, they were compared as two."""
    config = finished().handles["poison-report"].config
    areas = {name: dict(of.values) for name, of in results().detectors.items()}
    areas["untrained"] = {seed: 0.1 + int(seed) / 10 for seed in areas["ekfac"]}
    compared(config, areas, results().removal)
    with pytest.raises(CheckFailed, match="AUROC of ekfac and of identity: measured the same with every seed"):
        compared(config, areas | {"ekfac": areas["identity"]}, results().removal)
    compared(
        config, areas | dict.fromkeys(("ekfac", "identity"), dict.fromkeys(areas["ekfac"], 1.0)), results().removal
    )


def test_degraded_factors_and_rows_that_had_the_trigger_stand_first_among_what_is_to_be_kept_in_mind():
    found = results()
    assert not re.search("degraded|had the words", document(found).markdown())
    poison, degraded = found.poison | {"had_trigger": 3.0}, ["last (victim, seed 0)"]
    said = document(found.model_copy(update={"degraded_modules": degraded, "poison": poison})).not_shown
    assert "degraded: last (victim, seed 0)" in said[0]
    assert any("3 rows had the words of the trigger" in text for text in said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("seeds=[1,1]", "seeds has 1 twice"),
        ("seeds=[1]", "seeds"),
        ("train_rows=590", "text.rows"),
        ("poison.trigger=' '", "trigger"),
        ("poison.share=0.6", "share"),
        ("model.source=t5", "bag, directory, hub"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(change, said):
    with pytest.raises(BadInput, match=said):
        SMOKE.study(change)


def test_scores_hold_every_training_row_once():
    manifest = Manifest.read(finished().path("poison-poison (seed 0)"))
    assert {len(values) for of in scores(manifest).values() for values in of.values()} == {len(manifest.train)}
    manifest.train.append(manifest.test[0])
    with pytest.raises(CheckFailed, match="the records hold each row_id and model and method once"):
        scores(manifest)
