"""D12, D13: on which tokens models are scored, and by which their losses are weighted."""

import numpy as np
import pytest
import torch

from tasks.language.evaluation import document_losses, rolling_windows
from tasks.language.losses import paired_difference, summary
from tests.tasks.tiny import tiny_model


def record(model: str, number: int, tokens: int, loss: float) -> dict:
    return {
        "model": model,
        "example_id": str(number),
        "source": str(number),
        "tokens_scored": tokens,
        "loss_sum_nats": loss * tokens,
    }


def test_d12_half_a_batch_that_is_dropped_when_memory_runs_out():
    """Two models could be scored on different documents, and nothing said so."""
    losses = {"baseline": [2.0, 2.0, 6.0, 6.0], "monotonic": [3.0, 3.0]}  # the heavier model's second half did not fit
    rows = [record(model, i, 10, loss) for model, of in losses.items() for i, loss in enumerate(of)]
    with pytest.raises(ValueError, match="not scored on the same tokens"):
        paired_difference(rows, "monotonic", "baseline", resamples=100, confidence_level=0.9)


def test_d12_running_out_of_memory_is_an_error():
    windows = [rolling_windows([5] * 20, 0, 16) for _ in range(4)]

    class Heavy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = tiny_model(), 0

        def forward(self, input_ids: torch.Tensor):
            self.calls += 1
            if self.calls > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.inner(input_ids=input_ids)

    with pytest.raises(torch.OutOfMemoryError):
        document_losses(Heavy(), windows, batch_size=2)


def test_d13_losses_weighted_by_mask_tokens_and_not_by_predicted_ones():
    """The mean over n - 1 predictions was weighted with n: short documents counted too much."""
    model = tiny_model()
    documents = [[7, 3], [5] * 9 + [11] * 7]  # an end-of-text token stands in front of each
    exact = []
    for ids in documents:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[0, *ids[:-1]]])).logits[0].double()
        exact.append(-torch.log_softmax(logits, -1)[range(len(ids)), ids].numpy())
    truth = float(np.concatenate(exact).mean())

    sums = document_losses(model, [rolling_windows(ids, 0, 16) for ids in documents], batch_size=2)
    rows = [
        record("m", i, len(ids), total / len(ids)) for i, (ids, total) in enumerate(zip(documents, sums, strict=True))
    ]
    assert summary(rows, "m").loss_nats_per_token == pytest.approx(truth, rel=1e-6)


def test_d13_a_mean_over_batches_that_depends_on_the_batch_size():
    texts = [[5] * 30, [9], [8] * 12]
    model = tiny_model()
    ours = [document_losses(model, [rolling_windows(t, 0, 16) for t in texts], size).sum() for size in (1, 2, 3)]
    assert ours == pytest.approx([ours[0]] * 3, rel=1e-5)
