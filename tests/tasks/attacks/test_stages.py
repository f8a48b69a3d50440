"""uat, hotflip and transfer as stages: records that can be checked, equal cost, and no kill that shows."""

import os
import shutil
import signal
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer

from deployments.dag.walk import Handle
from storage.errors import BadInput, CheckFailed
from tasks.attacks import hotflip, transfer
from tasks.attacks.configuration import BUDGET_SHARES
from tasks.attacks.flips import random_flips, writable_positions
from tasks.attacks.reading import Searched
from tasks.attacks.results import UatResult
from tasks.attacks.scoring import Victim
from tasks.attacks.stages import HotFlipConfig, TransferConfig, UatConfig
from tasks.attacks.strongest import KEY_COLUMNS, Tried, increases_of
from tasks.attacks.texts import attacked_texts, usable_tokens
from tasks.attacks.trigger import TriggerSearch, control_triggers
from tasks.language.model import load, save
from tasks.language.stages import SetupConfig
from tasks.language.tokenizer import round_trips, text_of
from tasks.robustness.study import Study
from tasks.stage.configuration import scientific
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration
from tests.tasks.tiny import Here, tiny_model, tiny_study

MODELS = {"base": 1, "baseline": 2}
"""Name -> seed of its weights."""

FOLDERS = {"base": "model", "baseline": "snapshots/1"}
"""Name -> the folder that is attacked."""


class UntrainedConfig(StageConfiguration):
    """A tiny model."""

    init_seed: int = scientific(description="Of its weights.")


def untrained(run: StageRun, config: UntrainedConfig, text: StageInput) -> dict[str, Any]:
    tokenizer = text.path / "text" / "tokenizer"
    vocabulary = len(AutoTokenizer.from_pretrained(tokenizer))
    for name in sorted(set(FOLDERS.values())):
        with run.publish(name) as folder:
            save(tiny_model(vocabulary=vocabulary, seed=config.init_seed), tokenizer, folder)
    return {}


SETUP = Stage("setup", SetupConfig, "tasks.language.setup:setup", needs="gpu")
MODEL = Stage("untrained", UntrainedConfig, f"{__name__}:untrained")
UAT = Stage("uat", UatConfig, "tasks.attacks.uat:uat", needs="gpu")
HOTFLIP = Stage("hotflip", HotFlipConfig, "tasks.attacks.hotflip:hotflip", needs="gpu")
TRANSFER = Stage("transfer", TransferConfig, "tasks.attacks.transfer:transfer", needs="gpu")


@dataclass(frozen=True)
class Attacked:
    """The attack stages on two untrained models and real setup's text, on disk."""

    root: Path
    study: Study
    handles: dict[str, Handle]

    def path(self, stage: str) -> Path:
        return self.handles[stage].run.path

    def rows(self, stage: str) -> list[dict[str, Any]]:
        return pq.read_table(self.path(stage) / "records.parquet").to_pylist()

    def input(self, stage: str) -> StageInput:
        return self.handles[stage].as_input()

    def uat(self, model: str) -> UatResult:
        return UatResult.read(self.input(f"uat-{model}"))

    def searched(self, attack: str, model: str) -> Searched:
        if attack == "hotflip":
            return Searched.of_flips(self.rows(f"hotflip-{model}"), self.study.hotflip)
        return Searched.of_triggers(self.uat(model), self.study.uat, self.tokenizer())

    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.path("setup") / "text" / "tokenizer")

    def victim(self, model: str) -> Victim:
        return Victim(load(self.path(f"model-{model}") / FOLDERS[model]), self.tokenizer().eos_token_id, 5)

    def texts(
        self, tokens: int, documents: int | None = None, split: str = "attack-evaluation"
    ) -> dict[str, list[int]]:
        found = attacked_texts(self.input("setup"), split, tokens, documents)
        return {text.example_id: text.tokens for text in found}

    def copy(self, folder: Path) -> Path:
        shutil.copytree(self.root, folder)
        return folder


def attacked(root: Path, study: Study) -> Attacked:
    """Runs what is not finished yet."""
    stage = Here(root, study.name)
    handles = {"setup": stage(SETUP, SetupConfig.of(study, tokenizer=study.tokenizer))}
    text = handles["setup"]
    for name, seed in MODELS.items():
        given = {"model": name, "folder": FOLDERS[name], "execution": study.execution, "cell": name}
        made = UntrainedConfig(init_seed=seed, execution=study.execution, cell=name)
        model = handles[f"model-{name}"] = stage(MODEL, made, text=text)
        uat = UatConfig(attack=study.uat, seed=study.seed, **given)
        flips = HotFlipConfig(attack=study.hotflip, seed=study.seed, **given)
        handles[f"uat-{name}"] = stage(UAT, uat, text=text, model=model)
        handles[f"hotflip-{name}"] = stage(HOTFLIP, flips, text=text, model=model)
    found = {name: handle for name, handle in handles.items() if name != "setup"}
    config = TransferConfig(models=FOLDERS, uat=study.uat, hotflip=study.hotflip, execution=study.execution)
    handles["transfer"] = stage(TRANSFER, config, text=text, **found)
    return Attacked(root, study, handles)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Attacked:
    folder = tmp_path_factory.mktemp("attacks")
    found = attacked(folder / "runs", tiny_study(folder))
    assert all(handle.finished for handle in found.handles.values()), {
        name: handle.outcome for name, handle in found.handles.items()
    }
    return found


@pytest.mark.parametrize(("attack", "documents"), [("uat", 5), ("hotflip", 4)])
def test_a_model_is_attacked_on_the_first_texts_of_attack_evaluation(study, attack, documents):
    split = pq.read_table(study.path("setup") / "text" / "attack-evaluation.parquet").to_pylist()[:documents]
    for model in MODELS:
        rows = study.rows(f"{attack}-{model}")
        assert [(row["model"], row["example_id"]) for row in rows] == [(model, row["example_id"]) for row in split]


def test_every_model_had_the_same_budget_counted_and_so_had_the_blind_search(study):
    costs = set()
    for model in MODELS:
        gradient, blind = study.uat(model).gradient, study.uat(model).blind
        costs.add((gradient.forward_sequences, gradient.backward_sequences))
        assert blind.forward_sequences == gradient.forward_sequences + 2 * gradient.backward_sequences
        assert blind.backward_sequences == 0 < gradient.backward_sequences
        flips = study.searched("hotflip", model).cost
        costs.add((flips.forward_sequences, flips.backward_sequences))
        assert flips.blind_forward_sequences == flips.forward_sequences + 2 * flips.backward_sequences
        for row in study.rows(f"hotflip-{model}"):
            assert row["blind_forward_sequences"] == row["forward_sequences"] + 2 * row["backward_sequences"]
    assert len(costs) == 2, "one for each attack"


def test_uat_records_are_the_losses_of_the_texts_own_tokens(study):
    texts = study.texts(12)
    for model in MODELS:
        found, victim = study.uat(model), study.victim(model)
        usable = usable_tokens(study.tokenizer(), len(victim.embeddings_VD))
        controls = control_triggers(usable, study.study.uat, study.study.seed)
        assert list(found.gradient.budgets) == [f"{share:g}" for share in BUDGET_SHARES]
        prefixes = [[], found.blind.best.trigger_ids, *found.gradient.budgets.values(), *controls]
        for row in study.rows(f"uat-{model}"):
            tokens = texts[row["example_id"]]
            losses = victim.losses(prefixes, [tokens] * len(prefixes))
            clean, blind, *others = (pytest.approx(loss.sum().item(), rel=1e-5) for loss in losses)
            assert row["tokens_scored"] == row["text_tokens"] == len(tokens) == 12
            assert row["text_clean_loss_sum_nats"] == row["clean_loss_sum_nats"] == clean
            assert row["blind_loss_sum_nats"] == blind
            assert row["budget_losses_sum_nats"] == others[:3] and row["loss_sum_nats"] == others[2]
            assert row["control_losses_sum_nats"] == others[3:] and len(others) == 3 + 2


def test_a_trigger_is_the_best_restart_on_the_search_split_and_given_as_ids_and_text(study):
    tokenizer = study.tokenizer()
    for model, search in product(MODELS, ("gradient", "blind")):
        searched, found = getattr(study.uat(model), search), study.searched("uat", model)
        best, shown = max(searched.restarts, key=lambda own: own.search_loss_nats_per_token), found.triggers[search]
        assert shown.trigger_ids == best.trigger_ids == searched.budgets["1"] and len(best.trigger_ids) == 3
        assert best.search_loss_nats_per_token > searched.search_loss_clean_nats_per_token
        assert shown.trigger_text == text_of(tokenizer, best.trigger_ids)


def test_hotflip_records_say_what_was_replaced_and_what_it_did_to_the_others(study):
    tokenizer, texts, attack, seed = study.tokenizer(), study.texts(14, 4), study.study.hotflip, study.study.seed
    for row in (row for model in MODELS for row in study.rows(f"hotflip-{model}")):
        tokens, victim = texts[row["example_id"]], study.victim(row["model"])
        assert row["writable"] == writable_positions(tokens, attack, seed) and len(row["writable"]) == 4
        kept = [i for i in range(len(tokens)) if i not in row["writable"]]

        def written(prefix: str, row=row, tokens=tokens) -> list[int]:
            changed = list(tokens)
            for place, token in zip(row[f"{prefix}positions"], row[f"{prefix}replacements"], strict=True):
                assert place in row["writable"] and token != tokens[place]
                changed[place] = token
            return changed

        usable = usable_tokens(tokenizer, len(victim.embeddings_VD))
        controls = random_flips(tokens, usable, attack, seed)
        judged = [tokens, written(""), written("blind_"), *controls]
        losses = victim.losses([[]] * len(judged), judged)
        clean, attacked_, blind, *control = (pytest.approx(loss[kept].sum().item(), rel=1e-5) for loss in losses)
        assert row["text_tokens"] == len(tokens) == 14 and row["tokens_scored"] == len(kept) == 10
        assert (row["clean_loss_sum_nats"], row["loss_sum_nats"], row["blind_loss_sum_nats"]) == (
            clean,
            attacked_,
            blind,
        )
        assert row["text_clean_loss_sum_nats"] == pytest.approx(losses[0].sum().item(), rel=1e-5)
        assert row["control_losses_sum_nats"] == control and len(control) == 2
        assert row["budget_losses_sum_nats"][-1] == row["loss_sum_nats"]
        assert row["budget_losses_sum_nats"] == sorted(row["budget_losses_sum_nats"])
        assert row["flips"] == len(row["positions"]) <= 2 and row["round_trips"] == round_trips(tokenizer, written(""))
        risen = (row["loss_sum_nats"] - row["clean_loss_sum_nats"]) / len(kept)
        whole = row["text_clean_loss_sum_nats"] / len(tokens)
        assert row["success"] == (risen > attack.success_relative_increase * whole)


def test_every_model_is_scored_on_the_same_tokens_and_may_write_the_same(study):
    of = [[(r["example_id"], r["writable"], r["tokens_scored"]) for r in study.rows(f"hotflip-{m}")] for m in MODELS]
    assert of[0] == of[1]


# ---------------------------------------------------------------------------------------------- kill and go on


@pytest.mark.parametrize(
    ("stage", "interval"), [("uat-base", 1), ("uat-base", 5), ("hotflip-base", 1), ("transfer", 1)]
)
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
    monkeypatch.setattr(hotflip, "advance", then_stop(hotflip.advance))
    monkeypatch.setattr(transfer._Tries, "__call__", then_stop(transfer._Tries.__call__))
    root = study.copy(tmp_path / "runs")
    shutil.rmtree(root / study.path(stage).relative_to(study.root))
    ends = []
    while not ends or ends[-1] == "sigterm":
        ends.append(attacked(root, study.study).handles[stage].outcome.end_state)
        assert len(ends) < 60
    assert ends[-1] == "finished" and len(ends) >= 3
    require_same_bytes(study, root, stage)


def test_uat_goes_on_within_a_restart_and_after_the_first_search(study, tmp_path, monkeypatch):
    """As after SIGKILL: what was done since the last checkpoint is done again, and the bytes are the same."""
    root = study.copy(tmp_path / "runs")
    shutil.rmtree(root / study.path("uat-base").relative_to(study.root))
    real, steps = TriggerSearch.step, []

    def die(search):
        steps.append(search.with_gradient)
        if len(steps) in (7, 18):  # within the gradient search; within the blind one, which the first is saved before
            raise MemoryError("killed")
        real(search)

    monkeypatch.setattr(TriggerSearch, "step", die)
    ends = [attacked(root, study.study).handles["uat-base"].outcome.end_state for _ in range(3)]
    assert ends == ["crashed", "crashed", "finished"]
    assert steps[18:] == [False] * 8, "no gradient was computed again"
    require_same_bytes(study, root, "uat-base")


@pytest.fixture(scope="module")
def in_lockstep(study, tmp_path_factory) -> Attacked:
    """hotflip of base with three texts at once, as on a GPU; the fourth is a group of its own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(hotflip, "texts_together", lambda victim: 3)
        return attacked(without(study, tmp_path_factory.mktemp("lockstep") / "runs", "hotflip-base"), study.study)


def without(study: Attacked, root: Path, stage: str) -> Path:
    study.copy(root)
    shutil.rmtree(root / study.path(stage).relative_to(study.root))
    return root


def test_texts_that_are_searched_together_are_flipped_as_each_alone(study, in_lockstep):
    for own, together in zip(study.rows("hotflip-base"), in_lockstep.rows("hotflip-base"), strict=True):
        for name, value in own.items():
            rounding = name.endswith(("nats", "correlations"))
            assert together[name] == (pytest.approx(value, rel=1e-5) if rounding else value), name


def test_a_group_of_texts_that_is_killed_and_stopped_at_any_round_goes_on_with_the_same_bytes(
    study, in_lockstep, tmp_path, monkeypatch
):
    """Killed within each search, with the checkpoint of the round before; stopped; killed between two records."""
    root, real, rounds = without(study, tmp_path / "runs", "hotflip-base"), hotflip.advance, []
    own = study.study.model_copy(
        update={"execution": study.study.execution.model_copy(update={"checkpoint_every_steps": 1})}
    )
    monkeypatch.setattr(hotflip, "texts_together", lambda victim: 3)

    def dies(searches):
        rounds.append((searches[0].with_gradient, len(searches), len(searches[0].found.loss_sums)))
        if len(rounds) in (2, 9):
            raise MemoryError("killed")
        if len(rounds) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        real(searches)

    row, rows = hotflip._Attacker.row, []

    def dies_between(attacker, number):
        rows.append(number)
        if len(rows) == 2:
            raise MemoryError("killed")
        return row(attacker, number)

    monkeypatch.setattr(hotflip, "advance", dies)
    monkeypatch.setattr(hotflip._Attacker, "row", dies_between)
    ends = []
    while not ends or ends[-1] != "finished":
        ends.append(attacked(root, own).handles["hotflip-base"].outcome.end_state)
        assert len(ends) < 9
    assert sorted(ends) == ["crashed", "crashed", "crashed", "finished", "sigterm"]
    assert len(set(rounds)) >= len(rounds) - 3, "a death costs the round that it came in"
    require_same_bytes(in_lockstep, root, "hotflip-base")


def test_one_that_is_killed_while_a_group_is_judged_searches_none_of_it_again(
    study, in_lockstep, tmp_path, monkeypatch
):
    root, real, rounds = without(study, tmp_path / "runs", "hotflip-base"), hotflip.advance, []
    monkeypatch.setattr(hotflip, "texts_together", lambda victim: 3)
    monkeypatch.setattr(hotflip, "advance", lambda searches: rounds.append(len(searches)) or real(searches))
    row = hotflip._Attacker.row
    monkeypatch.setattr(
        hotflip._Attacker, "row", lambda attacker, number: row(attacker, number) if number < 1 else 1 / 0
    )
    assert attacked(root, study.study).handles["hotflip-base"].outcome.end_state == "crashed"
    assert set(rounds) == {3} and not rounds.clear()
    monkeypatch.setattr(hotflip._Attacker, "row", row)
    assert attacked(root, study.study).handles["hotflip-base"].outcome.end_state == "finished"
    assert set(rounds) == {1}, "the last text is a group of its own"
    require_same_bytes(in_lockstep, root, "hotflip-base")


def require_same_bytes(study: Attacked, root: Path, stage: str) -> None:
    for name in ("records.parquet", "result.json"):
        again = root / study.path(stage).relative_to(study.root) / name
        assert again.read_bytes() == (study.path(stage) / name).read_bytes()


# ------------------------------------------------------------------------------------------------------ transfer


def test_transfer_tries_what_was_found_for_each_model_on_each(study):
    rows = study.rows("transfer")
    texts = {(a, "attack-evaluation"): study.texts(*how) for a, how in {"uat": (12,), "hotflip": (14, 4)}.items()}
    texts["uat", "attack-search"] = study.texts(12, split="attack-search")
    assert (
        len(rows)
        == 2 * 4 * (2 * (len(texts["uat", "attack-search"]) + 5) + 4)  # a trigger of each of two restarts
        == len({tuple(row[column] for column in KEY_COLUMNS) for row in rows})
    )
    flips = {(r["model"], r["example_id"]): r for model in MODELS for r in study.rows(f"hotflip-{model}")}
    for row in rows:
        own = texts[row["attack"].split(",")[0], row["split"]][row["example_id"]]
        prefix, tokens, kept = [], list(own), list(range(len(own)))
        if row["attack"] != "hotflip":
            trigger = getattr(study.uat(row["found_for"]), row["search"])
            prefix = trigger.named()[row["attack"]]
            assert (prefix == trigger.best.trigger_ids) == (row["attack"] == "uat")
        else:
            made = flips[row["found_for"], row["example_id"]]
            of = {"gradient": "", "blind": "blind_"}[row["search"]]
            for position, token in zip(made[f"{of}positions"], made[f"{of}replacements"], strict=True):
                tokens[position] = token
            kept = [i for i in kept if i not in made["writable"]]
        clean, changed = study.victim(row["model"]).losses([[], prefix], [own, tokens])
        assert (row["text_tokens"], row["tokens_scored"]) == (len(own), len(kept))
        assert row["clean_loss_sum_nats"] == pytest.approx(clean[kept].sum().item(), rel=1e-5)
        assert row["loss_sum_nats"] == pytest.approx(changed[kept].sum().item(), rel=1e-5)
        assert row["text_clean_loss_sum_nats"] == pytest.approx(clean.sum().item(), rel=1e-5)


def test_what_was_found_for_a_model_does_to_it_what_the_attack_said(study):
    increases = increases_of(study.rows("transfer"))
    for attack, found in ((attack, increases[attack, "attack-evaluation"]) for attack in ("uat", "hotflip")):
        for search, column in (("gradient", "loss_sum_nats"), ("blind", "blind_loss_sum_nats")):
            matrix = found[search]
            assert list(matrix) == [*MODELS] and all(list(tried_on) == [*MODELS] for tried_on in matrix.values())
            for model in MODELS:
                own = study.rows(f"{attack}-{model}")
                risen = sum(row[column] - row["clean_loss_sum_nats"] for row in own)
                assert matrix[model][model] == pytest.approx(risen / sum(row["tokens_scored"] for row in own), rel=1e-4)
            assert matrix["base"]["baseline"] != matrix["baseline"]["base"]


def test_a_trigger_does_on_attack_search_what_its_search_said(study):
    matrix = increases_of(study.rows("transfer"))["uat", "attack-search"]
    for search, of_search in matrix.items():
        for model in MODELS:
            found = getattr(study.uat(model), search)
            risen = found.best.search_loss_nats_per_token - found.search_loss_clean_nats_per_token
            assert of_search[model][model] == pytest.approx(risen, rel=1e-4)


@pytest.mark.parametrize("among", [(), ("base",)])
@pytest.mark.parametrize("attack", ["uat", "hotflip"])
def test_each_model_is_judged_by_the_strongest_attack_that_was_found_for_any(study, attack, among):
    own = {model: study.rows(f"{attack}-{model}") for model in MODELS}
    rows = study.rows("transfer")
    matrix = increases_of(rows)["uat", "attack-search"]
    chosen = Tried.of(attack, own, rows, matrix if attack == "uat" else None).strongest(among)
    assert list(chosen) == [*MODELS]
    everything = {(search, found_for) for search in ("gradient", "blind") for found_for in among or MODELS}
    for model, judged in chosen.items():
        for row, before in zip(judged, own[model], strict=True):
            losses = {
                (one["search"], one["found_for"]): one["loss_sum_nats"]
                for one in rows
                if (one["attack"], one["split"], one["model"]) == (attack, "attack-evaluation", model)
                and one["example_id"] == row["example_id"]
            }
            by = tuple(row["attacked_by"])
            assert by in everything
            assert row["loss_sum_nats"] == losses[by]
            assert {**before, **row} == {**before, "loss_sum_nats": losses[by], "attacked_by": list(by)}
            assert not {"success", "flips", "positions", "round_trips"} & set(row), "of another attack"
            if attack == "hotflip":  # who attacks a text sees its loss
                assert losses[by] == max(losses[one] for one in everything)
            else:  # one trigger for all texts, chosen where it was learned
                on_search = {one: matrix[one[0]][one[1]][model] for one in everything}
                assert on_search[by] == max(on_search.values())


def test_each_restart_is_a_search_by_itself_with_the_strongest_trigger_of_all_models(study):
    own = {model: study.rows(f"uat-{model}") for model in MODELS}
    rows, uat = study.rows("transfer"), {model: study.uat(model) for model in MODELS}
    tried = Tried.of("uat", own, rows, increases_of(rows)["uat", "attack-search"], uat)
    found = {search: tried.over_searches(search) for search in (Tried.strongest, Tried.alone)}
    for number in range(2):
        names = {(s, m): list(getattr(uat[m], s).named())[number] for s in ("gradient", "blind") for m in MODELS}
        theirs = [row for row in rows if row["attack"] == names.get((row["search"], row["found_for"]))]
        on_search = increases_of([row | {"attack": "uat"} for row in theirs])["uat", "attack-search"]
        for way, of_searches in found.items():
            for row in of_searches[number]:
                model, by = row["model"], ("gradient", row["model"])
                if way is Tried.strongest:
                    by = max(names, key=lambda one: on_search[one[0]][one[1]][model])
                (tried_on,) = [
                    one["loss_sum_nats"]
                    for one in theirs
                    if (one["search"], one["found_for"]) == by
                    and (one["split"], one["model"], one["example_id"])
                    == ("attack-evaluation", model, row["example_id"])
                ]
                assert row["loss_sum_nats"] == tried_on and tuple(row["attacked_by"]) == by
    assert all(len(searches) == 2 for searches in found.values())


def test_of_equal_attacks_the_model_s_own_counts(study):
    own = {model: study.rows(f"hotflip-{model}") for model in MODELS}
    rows = [{**row, "loss_sum_nats": 1.0} for row in study.rows("transfer")]
    chosen = Tried.of("hotflip", own, rows).strongest()
    assert {(model, *row["attacked_by"]) for model in MODELS for row in chosen[model]} == {
        (model, "gradient", model) for model in MODELS
    }


def test_each_model_alone_is_judged_by_its_own_gradient_search(study):
    own = {model: study.rows(f"uat-{model}") for model in MODELS}
    alone = Tried.of("uat", own, study.rows("transfer")).alone()
    for model in MODELS:
        assert [row["loss_sum_nats"] for row in alone[model]] == [row["loss_sum_nats"] for row in own[model]]
        assert all(row["attacked_by"] == ["gradient", model] for row in alone[model])


def test_flips_of_other_documents_are_refused(study, tmp_path):
    pq.write_table(pa.Table.from_pylist(study.rows("hotflip-base")[::-1]), tmp_path / "records.parquet")
    own = study.study
    config = TransferConfig(models={"base": "model"}, uat=own.uat, hotflip=own.hotflip, execution=own.execution)
    given = {"hotflip-base": SimpleNamespace(path=tmp_path)}
    with pytest.raises(CheckFailed, match="records of hotflip of base"):
        list(transfer._flips(config, study.input("setup"), given))


# --------------------------------------------------------------------------------------------------------- texts


def test_the_end_of_a_text_is_cut_and_never_its_beginning(study):
    whole = attacked_texts(study.input("setup"), "attack-search", 10_000)
    short = attacked_texts(study.input("setup"), "attack-search", 7)
    assert [t.tokens[:7] for t in whole] == [t.tokens for t in short] and max(len(t.tokens) for t in whole) > 20


def test_a_document_with_one_token_is_named_and_not_left_out(study, tmp_path):
    root = study.copy(tmp_path / "runs")
    path = root / study.path("setup").relative_to(study.root)
    file = path / "text" / "attack-search.parquet"
    rows = pq.read_table(file).to_pylist()
    rows[1]["text"] = "b"
    pq.write_table(pa.Table.from_pylist(rows), file)
    with pytest.raises(BadInput, match=r"'b' of split attack-search .* has 1 token"):
        attacked_texts(SimpleNamespace(path=path), "attack-search", 12)


def test_a_search_in_bf16_is_judged_in_fp32(study, tmp_path):
    root = study.copy(tmp_path / "runs")
    fields = study.study.model_dump()
    rough = {a: fields[a] | {"search_precision": "bf16"} for a in ("uat", "hotflip")}
    found = attacked(root, Study.model_validate(fields | rough))
    texts = found.texts(12)
    trigger, victim = found.uat("base").gradient, found.victim("base")
    assert found.path("uat-base").name != study.path("uat-base").name, "the precision is part of what was done"
    for row in found.rows("uat-base"):
        (loss,) = victim.losses([trigger.best.trigger_ids], [texts[row["example_id"]]])
        assert row["loss_sum_nats"] == pytest.approx(loss.sum().item(), rel=1e-6)
    for row in found.rows("hotflip-base"):
        judged, searched = row["budget_losses_sum_nats"][-1], row["search_losses_sum_nats"][-1]
        assert judged == row["loss_sum_nats"] != searched and torch.isfinite(torch.tensor(searched))
