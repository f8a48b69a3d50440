"""Strength of the trigger search beside Wallace's loop and blind search, on the models of a finished robustness study.

    python -m benchmarks.triggers --results runs/quick/aggregate/<run>/final_results.json --seeds 5

All have the study's texts, usable tokens, length of the trigger and texts a batch, start at the same triggers, make one
search a seed (`--iterations`, no restarts), and spend at most the same counted forwards (a peer's last round may be
cut). They search on attack-search; what they found is judged on attack-evaluation: the increase, in nats per token,
mean (and lowest to highest) of the seeds.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import attack_peers, language
from tasks.attacks.configuration import TriggerAttack
from tasks.attacks.scoring import Victim
from tasks.attacks.stages import JUDGED, SEARCHED
from tasks.attacks.texts import attacked_texts, usable_tokens
from tasks.attacks.trigger import TriggerSearch, mean_loss, random_tokens
from tasks.language.model import load
from tasks.language.texts import tokenizer_of
from tasks.monotonic.arm import BASE
from tasks.training.order import example_at

BATCH, FIRST_SEED = 64, 42
WIDTHS = (4, 8)
"""Candidates of a position that Wallace's loop tries."""


def main() -> None:
    options = language.arguments(__doc__.splitlines()[0], results="", seeds=5, iterations=10)
    language.execution("cpu", BATCH)
    torch.set_num_threads(1)
    bench = Bench(Path(options.results), options.iterations)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for model in bench.models:
        for way, increases in bench.increases(model, options.seeds):
            found[way][model] = increases
            sys.stderr.write(f"{model}, {way}: {', '.join(f'{value:.4f}' for value in increases)}\n")
    sys.stdout.write(f"| search | {' | '.join(bench.models)} | all |\n|---|{'---|' * (1 + len(bench.models))}\n")
    for way, of_models in found.items():
        cells = [f"{statistics.mean(own):.3f} ({min(own):.3f} to {max(own):.3f})" for own in of_models.values()]
        every = statistics.mean(value for own in of_models.values() for value in own)
        sys.stdout.write(f"| {way} | {' | '.join(cells)} | {every:.3f} |\n")
    sys.stdout.write(f"{options}, {bench.attack}\n{language.machine()}\n")


class Bench:
    """The models of a study, its texts and its attack."""

    def __init__(self, file: Path, iterations: int) -> None:
        self.results, self.root = json.loads(file.read_text()), file.parents[3]
        setup: Any = SimpleNamespace(path=self.root / self.results["runs"]["setup"])
        one_search = {"restarts": 1, "iterations": iterations}
        self.attack = TriggerAttack.model_validate(self.results["attacks"]["uat"]["attack"] | one_search)
        self.models, tokenizer = list(self.results["attacks"]["uat"]["triggers"]), tokenizer_of(setup)
        self.end = tokenizer.eos_token_id
        self.searched, self.judged = (
            [text.tokens for text in attacked_texts(setup, split, self.attack.text_tokens)]
            for split in (SEARCHED, JUDGED)
        )
        self.usable_V = usable_tokens(tokenizer, len(self.victim(BASE).embeddings_VD))

    def victim(self, model: str) -> Victim:
        name, _, share = model.partition("@")
        run = self.root / self.results["runs"]["base" if name == BASE else f"train-{name}"]
        return Victim(load(run / (f"snapshots/{share}" if share else "model")), self.end, BATCH)

    def increases(self, model: str, seeds: int) -> Iterator[tuple[str, list[float]]]:
        """Each way to search, and what it found with each seed."""
        judge = self.victim(model)
        clean = mean_loss(judge, [], self.judged)
        ways = {"ours": self.ours, "ours, blind": self.blind}
        ways |= {f"Wallace, {width} a position": self.wallace(width) for width in WIDTHS}
        for way, search in ways.items():
            triggers = [search(judge, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
            yield way, [mean_loss(judge, trigger, self.judged) - clean for trigger in triggers]

    def ours(self, judge: Victim, seed: int, with_gradient: bool = True) -> list[int]:
        victim = Victim(judge.model, self.end, BATCH)
        search = TriggerSearch(victim, self.searched, self.usable_V, self.attack, seed, with_gradient=with_gradient)
        while not search.finished:
            search.step()
        self.budget = victim.count.as_forwards  # the same for every model, seed and search
        return search.best()["trigger_ids"]

    def blind(self, judge: Victim, seed: int) -> list[int]:
        return self.ours(judge, seed, with_gradient=False)

    def wallace(self, width: int) -> Any:
        def search(judge: Victim, seed: int) -> list[int]:
            start = random_tokens(self.usable_V, self.attack.trigger_tokens, [seed, 0, 0])
            found = start
            curve = attack_peers.wallace(judge.model, self.end, start, self.batches(seed), self.usable_V, width)
            for spent, _, trigger in curve:
                if spent > self.budget:
                    return found
                found = trigger
            return found

        return search

    def batches(self, seed: int) -> Iterator[list[list[int]]]:
        """The search texts in shuffled passes, so many at a time."""
        texts = len(self.searched)
        order = (
            self.searched[int(place)] for number in count() for place in example_at(seed, number, range(texts), texts)
        )
        while True:
            yield list(islice(order, self.attack.batch_documents))


if __name__ == "__main__":
    main()
