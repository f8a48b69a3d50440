"""A transformers.Trainer that is killed learns what an undisturbed one learns, whatever its data and callbacks do."""

import pickle
from pathlib import Path

import pytest

from storage import durable
from tasks.training import transformers_trainer
from tests.forks import Forks
from tests.test_going_on import Study

MINE = """
import os, random, signal
import ratchet as r


@r.stage()
def fit(run, seed: int, kind: str = "plain", settings: str = "", dies_at: list[int] = []):
    import torch
    from torch.utils.data import Dataset, IterableDataset
    from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback
    from transformers import TrainingArguments, default_data_collator

    torch.manual_seed(seed)
    rows = (torch.arange(640).view(64, 10) * 7) % 13
    model = GPT2LMHeadModel(GPT2Config(vocab_size=13, n_positions=10, n_embd=16, n_layer=1, n_head=2))
    arguments, callbacks, collate = dict(save_steps=4), [], default_data_collator
    data = plain = [{"input_ids": row, "labels": row} for row in rows]

    class Noisy(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, number):
            row = rows[number].clone()
            row[torch.randint(10, (1,))] = random.randrange(13)
            return {"input_ids": row, "labels": row}

    class Stream(IterableDataset):
        def __iter__(self):
            order = list(range(24))
            random.shuffle(order)
            return (plain[number] for number in order)

    class Tallying(TrainerCallback):
        def __init__(self):
            self.tally = 0

    class Dying(TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            for step in dies_at:
                if state.global_step == step and not os.path.exists(mark := run.directory / f"died-{step}"):
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

    if kind == "early":
        arguments |= dict(
            eval_strategy="steps", eval_steps=4, load_best_model_at_end=True, metric_for_best_model="eval_loss",
            learning_rate=1e-9,
        )
        callbacks = [EarlyStoppingCallback(4)]
    if kind in ("noisy", "workers"):
        data = Noisy()
        arguments |= dict(dataloader_num_workers=2 if kind == "workers" else 0)
    if kind in ("stream", "accumulated"):
        data = Stream()
        arguments |= dict(gradient_accumulation_steps=2 if kind == "accumulated" else 1)
    if kind == "masked":
        def collate(batch):
            collated = default_data_collator(batch)
            collated["input_ids"][torch.rand(collated["input_ids"].shape) < 0.2] = 0
            return collated
    if kind == "tallying":
        callbacks = [Tallying()]
    if settings:
        arguments[settings] = True
    trained = Trainer(
        model, TrainingArguments(
            run.scratch, max_steps=20, logging_steps=4, seed=seed, use_cpu=True, disable_tqdm=True, report_to=[],
            **arguments,
        ),
        train_dataset=data, eval_dataset=[{"input_ids": row, "labels": row} for row in rows[:8]],
        data_collator=collate, callbacks=[*callbacks, Dying()],
    )
    r.train_transformers(run, trained)
    with run.publish("model") as folder:
        trained.save_model(folder)
    return {"steps": trained.state.global_step}


@r.study
def mine():
    return fit()
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Study:
    return Study(tmp_path_factory.mktemp("mine"), {"mine.py": MINE}, forks)


def run_of(root: Path) -> Path:
    (run,) = root.glob("mine/mine-fit/*")
    return run


@pytest.mark.parametrize("kind", ["early", "noisy", "workers", "stream", "accumulated", "masked", "tallying"])
def test_one_that_is_killed_learns_what_an_undisturbed_one_learns(study, tmp_path, kind):
    """Seen: the patience began anew at each kill, and what shuffles or draws by itself gave other data."""
    assert study.run(tmp_path / "whole", changes=(f"kind={kind}",)) == 0, study.said[-3000:]
    struck = (f"kind={kind}", "dies_at=[5,11]")
    codes = [study.run(tmp_path / "killed", changes=struck) for _ in range(3)]
    assert codes == [-9, -9, 0], study.said[-3000:]
    weights = [(run_of(tmp_path / root) / "model" / "model.safetensors").read_bytes() for root in ("whole", "killed")]
    results = [durable.read_json(run_of(tmp_path / root) / "result.json") for root in ("whole", "killed")]
    assert weights[0] == weights[1] and results[0] == results[1]
    record = durable.read_json(run_of(tmp_path / "killed") / "attempts" / "0003.json")
    expected = "what Tallying keeps is in no checkpoint" if kind == "tallying" else ""
    assert record["went_on"] == {"a Trainer": expected}
    log = (run_of(tmp_path / "killed") / "attempts" / "0003.log").read_text()
    assert "goes on from checkpoint-8, kept when step 8 was told" in log


def test_its_data_can_be_moved_to_workers_that_are_spawned():
    """They are pickled for it, and their names are asked for before they have any data."""
    items = pickle.loads(pickle.dumps(transformers_trainer._Items([3, 4], transformers_trainer._Draws())))
    assert (len(items), items[1], items.count(3)) == (2, 4, 1)


@pytest.mark.parametrize("setting", ["save_only_model", "ignore_data_skip"])
def test_settings_that_make_its_checkpoint_none_are_refused_before_a_step(study, tmp_path, setting):
    assert study.run(tmp_path, changes=(f"settings={setting}",)) == 2
    record = durable.read_json(run_of(tmp_path) / "attempts" / "0001.json")
    assert f"the Trainer has {setting}=True" in record["diagnosis"]["summary"]


def test_a_setting_that_no_test_has_is_named_where_it_goes_on(study, tmp_path):
    changes = ("settings=auto_find_batch_size", "dies_at=[5]")
    assert [study.run(tmp_path, changes=changes) for _ in range(2)] == [-9, 0]
    record = durable.read_json(run_of(tmp_path) / "attempts" / "0002.json")
    assert record["went_on"] == {"a Trainer": "no test has auto_find_batch_size"}
