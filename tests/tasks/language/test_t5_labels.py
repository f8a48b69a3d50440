"""A T5 as a classifier: what it says and its gradients are those of a text alone, and what was kept is what it was."""

import numpy as np
import pytest
import torch

from storage.errors import BadInput
from tasks.influence.factors import compute_factors
from tasks.influence.plan import Limits, factor_plan, this_machine
from tasks.influence.scores import gathered, scores
from tasks.influence.task import Task, require_faithful, token_losses
from tasks.language.classifiers import kept_classifier, logits_of, new_classifier
from tasks.language.configuration import PretrainedDirectory
from tasks.poison.audit import plain
from tests.tasks.language.tiny_t5 import write_t5
from tests.tasks.tiny import sentences

LABELS = ["good", "bad"]
TEXTS = [text[: 20 * length] for text, length in zip(sentences(4), (1, 3, 2, 4), strict=True)]


@pytest.fixture(scope="module", params=[False, True], ids=["relu", "gated"])
def classifier(request, tmp_path_factory):
    folder = write_t5(tmp_path_factory.mktemp("t5"), gated=request.param)
    return new_classifier(PretrainedDirectory(path=str(folder)), [], LABELS, folder).eval()


def test_a_text_alone_and_in_a_padded_batch_gives_the_same_logits(classifier):
    ids = classifier.encoded(TEXTS)
    assert (ids == classifier.config.pad_token_id).any()
    together = logits_of(classifier, ids, 2)
    for text, logits in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(logits_of(classifier, classifier.encoded([text]), 1)[0], logits)


def test_it_says_what_transformers_says_of_the_first_written_piece(classifier, tmp_path):
    from tasks.language.model import load

    network = load(write_t5(tmp_path, gated=classifier.config.is_gated_act)).eval()
    pieces = [ids[0] for ids in classifier.tokenizer(LABELS, add_special_tokens=False)["input_ids"]]
    ids, start = classifier.encoded(TEXTS[:1]), torch.tensor([[classifier.config.decoder_start_token_id]])
    with torch.no_grad():
        expected = network(input_ids=ids, decoder_input_ids=start).logits[0, 0, pieces]
    torch.testing.assert_close(logits_of(classifier, ids, 1)[0], expected)


def test_what_is_kept_is_what_it_was(classifier, tmp_path):
    classifier.save(tmp_path)
    kept = kept_classifier(tmp_path)
    ids = classifier.encoded(TEXTS)
    assert kept.labels == LABELS and torch.equal(kept.encoded(TEXTS), ids)
    assert torch.equal(logits_of(kept, ids, 4), logits_of(classifier, ids, 4))
    assert kept.encoder.embed_tokens.weight is kept.decoder.embed_tokens.weight


def test_influence_of_its_texts_is_that_of_gradients_by_autograd(classifier, tmp_path):
    classifier.save(tmp_path)
    ids, numbers = classifier.encoded(TEXTS), torch.tensor([0, 1, 1, 0])
    task = Task(
        classifier,
        len(TEXTS),
        batch=lambda indices: (ids[torch.from_numpy(indices)], numbers[torch.from_numpy(indices)]),
        losses=lambda network, batch, generator: token_losses(network(batch[0]), batch[1], generator),
        positions=lambda batch, module: classifier.real(batch[0], module),
    )
    plan = factor_plan(classifier, this_machine("cpu"), Limits(kinds=classifier.kinds, exclude=classifier.excluded))
    asked, every = [one for one in plan if one.treatment != "excluded"], np.arange(4)
    require_faithful(task, asked, every)
    found = gathered(scores(task, task, every, every[:1], plan))[0]
    kept = kept_classifier(tmp_path)
    gradients = [plain(kept, text, LABELS[number])[1] for text, number in zip(TEXTS, numbers, strict=True)]
    assert set(gradients[0]) == {one.name for one in asked}
    expected = [sum(float((gradients[0][name] * of[name]).sum()) for name in of) for of in gradients]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * abs(expected[0]))
    statistics = compute_factors(task, every, tmp_path / "factors", plan)
    with_curvature = gathered(scores(task, task, every, every[:1], tmp_path / "factors"))
    assert with_curvature.isfinite().all() and {one.status for one in statistics} == {"ok", "excluded"}


def test_labels_that_begin_with_the_same_piece_are_refused(tmp_path):
    folder = write_t5(tmp_path)
    with pytest.raises(BadInput, match="begin with the same piece"):
        new_classifier(PretrainedDirectory(path=str(folder)), [], ["same", "same"], folder)
