"""Equal calls: refused within one page, shared between the cells of a sweep, and named for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.dag.walk import Handle, Walk
from storage.errors import BadInput
from tasks.stage.configuration import scientific
from tasks.stage.run import Stage
from tasks.stage.study import StageConfiguration


class TextConfig(StageConfiguration):
    documents: int = scientific(10, description="How many.")


class TrainConfig(StageConfiguration):
    seed: int = scientific(1, description="Order of the examples.")
    dropout: float = scientific(0.0, description="Share of what is dropped.")


class OtherConfig(StageConfiguration):
    seed: int = scientific(1, description="As in TrainConfig, and of another stage.")
    dropout: float = scientific(0.0, description="As in TrainConfig.")


TEXT = Stage("text", TextConfig, "nowhere:text")
TRAIN = Stage("train", TrainConfig, "nowhere:train")
TRAIN_AGAIN = Stage("train-again", TrainConfig, "nowhere:train_again")
OTHER = Stage("other", OtherConfig, "nowhere:other")


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    return Walk(tmp_path, "toy")


def page(walk: Walk, seed: int, dropout: float = 0.0) -> Handle:
    return walk(TRAIN, TrainConfig(seed=seed, dropout=dropout), text=walk(TEXT, TextConfig()))


def test_two_calls_of_one_name_with_equal_fields_are_refused(walk: Walk) -> None:
    text = walk(TEXT, TextConfig())
    walk(TRAIN, TrainConfig(cell="dropout .1"), text=text)
    with pytest.raises(BadInput, match=r"train \(dropout \.1\) and train \(dropout \.2\) are called with equal"):
        walk(TRAIN, TrainConfig(cell="dropout .2"), text=text)
    with pytest.raises(BadInput, match="the stage text is called twice with equal scientific fields and inputs"):
        walk(TEXT, TextConfig())


def test_two_names_are_refused_whatever_their_cells_and_execution_fields(walk: Walk) -> None:
    text = walk(TEXT, TextConfig())
    first = TrainConfig(cell="adversarial")
    walk(TRAIN, first, text=text)
    other = {"cell": "random", "execution": first.execution.model_copy(update={"cpu_threads": 1})}
    with pytest.raises(BadInput, match=r"train \(adversarial\) and train-again \(random\) are called with equal"):
        walk(TRAIN_AGAIN, first.model_copy(update=other), text=text)


def test_calls_that_differ_in_a_field_an_input_or_the_type_are_arms(walk: Walk) -> None:
    texts = [walk(TEXT, TextConfig(documents=count)) for count in (10, 20)]
    arms = [walk(TRAIN, TrainConfig(dropout=share, cell=f"dropout {share}"), text=texts[0]) for share in (0.1, 0.2)]
    arms += [walk(TRAIN_AGAIN, TrainConfig(dropout=0.1), text=texts[1]), walk(OTHER, OtherConfig(), text=texts[0])]
    assert [arm.label for arm in arms] == ["train (dropout 0.1)", "train (dropout 0.2)", "train-again", "other"]


def test_equal_calls_from_two_cells_share_one_handle(walk: Walk) -> None:
    trained = {}
    for seed in (1, 2):
        with walk.cell(f"seed {seed}"):
            trained[seed] = page(walk, seed)
    assert trained[1].inputs["text"] is trained[2].inputs["text"]
    assert [handle.label for handle in walk.handles] == ["text", "train (seed 1)", "train (seed 2)"]


def test_within_a_cell_equal_calls_are_refused(walk: Walk) -> None:
    with walk.cell("seed 1"):
        page(walk, 1)
    with pytest.raises(BadInput, match=r"the stage train \(seed 2\) is called twice"), walk.cell("seed 2"):
        text = page(walk, 2).inputs["text"]
        walk(TRAIN, TrainConfig(seed=2), text=text)


def test_a_stage_is_named_by_what_all_its_cells_share(walk: Walk) -> None:
    for seed in (1, 2):
        for documents in (10, 20):
            with walk.cell(f"seed {seed}", f"documents {documents}"):
                text = walk(TEXT, TextConfig(documents=documents))
                walk(TRAIN, TrainConfig(seed=seed, cell="baseline"), text=text)
    assert [handle.label for handle in walk.handles[:4]] == [
        "text (documents 10)",
        "train (baseline, seed 1, documents 10)",
        "text (documents 20)",
        "train (baseline, seed 1, documents 20)",
    ]
    assert walk.handles[4].label == "train (baseline, seed 2, documents 10)" and len(walk.handles) == 6


def test_what_a_stage_says_of_itself_is_not_said_again_by_its_cell(walk: Walk) -> None:
    """Seen: `fit (p 0.0, seed 1, p 0.0)`, in a sweep over a value that the stage's call gives too."""
    with walk.cell("seed 1", "documents 10"):
        text = walk(TEXT, TextConfig(documents=10, cell="documents 10"))
        trained = walk(TRAIN, TrainConfig(seed=1, cell="dropout 0.1, seed 1"), text=text)
    assert [text.label, trained.label] == ["text (documents 10, seed 1)", "train (dropout 0.1, seed 1, documents 10)"]


def test_a_cell_that_changes_nothing_is_refused(walk: Walk) -> None:
    with walk.cell("cpu_threads 1"):
        page(walk, 1)
    with (
        pytest.raises(BadInput, match=r"the cells \(cpu_threads 1\) and \(cpu_threads 2\) .* are equal in every stage"),
        walk.cell("cpu_threads 2"),
    ):
        page(walk, 1)
    with pytest.raises(BadInput, match=r"has the cell \(cpu_threads 1\) twice"), walk.cell("cpu_threads 1"):
        pass
