"""D9 and the silent fallbacks of the text: which documents are trained on, and which are measured."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from storage.errors import BadInput
from tasks.language.configuration import LocalFiles, Splits
from tasks.language.document_store import document_store
from tasks.language.documents import Document, document
from tasks.language.sources import documents as documents_of
from tasks.language.splits import EVALUATION_SPLITS, cut
from tests.tasks.tiny import sentences, tiny_study

CORPUS = [document(None, text) for text in sentences(300)]
SIZES = {f"{name.replace('-', '_')}_documents": 5 for name in EVALUATION_SPLITS}


def ours(train_documents: int | None) -> dict[str, set[str]]:
    settings = Splits(evaluation_share=0.1, train_documents=train_documents, **SIZES)
    return {name: {one.example_id for one in chosen} for name, chosen in cut_of(settings).items()}


def cut_of(settings: Splits) -> dict[str, list[Document]]:
    with tempfile.TemporaryDirectory() as folder, document_store(Path(folder)) as store:
        return {name: list(chosen) for name, chosen in cut(CORPUS, settings, store).documents.items()}


def test_d09_an_evaluation_split_that_moves_with_the_size_of_train():
    def evaluation_stays(split) -> bool:
        small, large = split(50), split(150)
        assert len(large["train"]) > len(small["train"])
        return all(small[name] == large[name] for name in EVALUATION_SPLITS)

    assert evaluation_stays(ours)


def test_d09_texts_that_stand_in_several_splits():
    def nothing_is_shared(split) -> bool:
        found = split(100)
        return sum(len(ids) for ids in found.values()) == len(set().union(*found.values()))

    assert nothing_is_shared(ours)


def test_d09_a_larger_evaluation_split_leaves_the_others_where_they_were():
    settings = Splits(evaluation_share=0.1, **SIZES)
    larger = settings.model_copy(update={"test_documents": 12})
    before, after = (cut_of(chosen) for chosen in (settings, larger))
    for name in ("validation", "attack-search", "attack-evaluation"):
        assert before[name] == after[name]
    assert after["test"][:5] == before["test"]


def test_none_for_the_training_size_that_silently_meant_the_quick_one():
    """TRAINING_SAMPLES = None was documented as everything, and was 100 000."""
    available = len(ours(None)["train"])

    def none_means_all(split, everything: int) -> bool:
        return len(split(None)["train"]) == everything

    assert none_means_all(ours, available) and available > 150


def test_a_data_set_that_cannot_be_had_becomes_an_empty_list(tmp_path):
    absent = str(tmp_path / "nowhere")

    def our_load() -> list[str]:
        return [one.text for one in documents_of(LocalFiles(paths=[absent]), tmp_path)]

    def says_so(load) -> bool:
        try:
            load()
        except BadInput as error:
            return absent in str(error)
        return False

    assert says_so(our_load)
    with pytest.raises(BadInput, match="nowhere"):  # and before any work, when the page is walked
        tiny_study(tmp_path, text={"source": "files", "paths": [absent]}).for_setup().external_inputs()
