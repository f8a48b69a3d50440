"""Evaluation of a model in fp32, tf32 and bf16: time, and what the losses of documents differ by.

    python -m benchmarks.evaluation --device cuda

A small GPT-NeoX is trained on docstrings first; one of another --size has random weights: that shows speed alone. tf32
is left out on a CPU.
"""

import statistics
import sys
import time

import numpy as np
import torch

from benchmarks import language
from benchmarks.attacks import END, trained
from tasks.robustness.evaluate import document_losses, rolling_windows
from tasks.robustness.rounding import ROUNDINGS, compared_documents, rounded, rounding_allowed


def main() -> None:
    options = language.arguments(__doc__.splitlines()[0], size="2M", device="cpu", documents=200, batch=64, repeats=2)
    language.execution(options.device, options.batch)
    model, documents = trained(options)
    model.eval().requires_grad_(False)
    chosen = np.random.default_rng(0).permutation(len(documents))[: options.documents].tolist()
    texts = [documents[place] for place in chosen if documents[place]]
    windows = [rolling_windows(text, END, language.LENGTH) for text in texts]
    found, seconds = {}, {}
    for precision in ("fp32", "tf32", "bf16") if options.device == "cuda" else ("fp32", "bf16"):
        times = []
        for _ in range(1 + options.repeats):
            began = time.monotonic()
            found[precision] = document_losses(model, windows, options.batch, precision)
            times.append(time.monotonic() - began)
        seconds[precision] = statistics.median(times[1:])
    tokens = [len(text) for text in texts]
    for precision, losses in found.items():
        rows = [
            {"model": "m", "tokens_scored": count, "loss_sum_nats": loss, "fp32_loss_sum_nats": exact}
            for count, loss, exact in zip(tokens, losses, found["fp32"], strict=True)
        ]
        away = rounded(rows)["m"]
        sampled = compared_documents([str(place) for place in range(len(rows))])
        some = [row for place, row in enumerate(rows) if str(place) in sampled]
        beyond = sum(
            abs(row["loss_sum_nats"] - row["fp32_loss_sum_nats"]) / row["tokens_scored"]
            > rounding_allowed(some, "m", row["tokens_scored"])
            for row in rows
        )
        sys.stdout.write(
            f"{precision}: {sum(tokens) / seconds[precision]:.0f} tokens/s, {seconds['fp32'] / seconds[precision]:.2f} "
            f"x fp32; nats/token away: mean {away.mean_nats_per_token:+.1e}, largest of a document "
            f"{away.largest_nats_per_token:.1e}; {beyond} of {len(rows)} beyond {ROUNDINGS} x those of {len(some)}\n"
        )
    if options.device == "cuda":
        sys.stdout.write(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB\n")
    sys.stdout.write(f"{options}\n{language.machine()}\n")


if __name__ == "__main__":
    main()
