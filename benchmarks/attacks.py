"""Speed and strength of the attacks beside nanoGCG, a loop like Wallace's and one like TextAttack's: same model, texts.

    make .venv-peers
    python -m benchmarks.attacks --seeds 5 [--model FOLDER] [--precision bf16]

Four tasks: a trigger before one text (ours, nanoGCG), a trigger before several (ours, Wallace), flips in one text
(ours, TextAttack), flips in several (ours in lockstep, TextAttack one after the other). In a task all have the same
model, texts, usable tokens, start, candidates a step and steps, and score the same tokens. Sequences a second are those
that went through the model, by processor time of the whole search (on a GPU by wall time). Without --model a small GPT-
NeoX is trained on docstrings first; one of another --size has random weights: that shows speed, and nothing of
strength. With --compile ours is made once more with a compiled body, whose compilation is left out of its time.
"""

import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer

from benchmarks import attack_peers, language
from tasks.attacks.compiled import compile_search
from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.flips import FlipSearch, advance, writable_positions
from tasks.attacks.scoring import Victim
from tasks.attacks.trigger import TriggerSearch, mean_loss, random_tokens
from tasks.language.model import block_losses, load
from tasks.stage.execution import Execution

END, TRAINING_STEPS = 0, 200
COMPILED = "compiled"
PEERS = Path(__file__).parents[1] / ".venv-peers"


@dataclass(frozen=True)
class Point:
    """What a search had spent, and the highest loss that it had found, in nats per scored token."""

    seconds: float
    forwards: int
    loss: float


def main() -> None:
    options = language.arguments(
        __doc__.splitlines()[0], model="", size="2M", device="cpu", precision="fp32", seeds=5, steps=8, candidates=100,
        texts=8, tokens=96, trigger=10, flips=10, batch=64, compile="none",
    )  # fmt: skip
    language.execution(options.device, options.batch)
    torch.set_num_threads(1)
    sys.path.append(str(PEERS))
    bench = Bench(options)
    rate = matmul_rate(options)
    sys.stdout.write(f"matrix products {rate / 1e9:.0f} GFLOP/s, {int(bench.usable_V.sum())} usable tokens\n")
    for task, ways in bench.tasks().items():
        found: dict[str, list[list[Point]]] = {name: [] for name in ways}
        for seed in range(options.seeds):
            for name, search in ways.items():
                found[name].append(search(seed))
        if compiled := found.pop(COMPILED, []):
            report(task, {COMPILED: compiled, "ours": found["ours"]}, bench.flops_of_a_sequence[task] / rate)
        report(task, found, bench.flops_of_a_sequence[task] / rate)
    sys.stdout.write(f"{options}\n{language.machine()}\n")


class Bench:
    """The searches, ours and theirs, on one model; the seed says which texts and where a trigger starts."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.model, documents = trained(options) if not options.model else loaded(options)
        self.model.eval().requires_grad_(False)
        self.usable_V = torch.zeros(self.model.config.vocab_size, dtype=torch.bool)
        self.usable_V[sorted({token for document in documents for token in document} - {END})] = True
        self.documents = [document[: options.tokens] for document in documents if len(document) >= options.tokens]
        weights = sum(part.weight.numel() for part in self.model.modules() if isinstance(part, nn.Linear))
        behind, alone = (2 * weights * (options.tokens + own) for own in (options.trigger, 0))
        self.flops_of_a_sequence = {
            "trigger, one text": behind,
            "trigger, texts": behind,
            "flips": alone,
            "flips, texts": alone,
        }

    def tasks(self) -> dict[str, dict[str, Callable[[int], list[Point]]]]:
        """Searches by task and name; ours compiled too, where that is asked for."""
        found = self._tasks()
        for task, ways in found.items() if self.options.compile != "none" else ():
            behind = self.options.trigger * task.startswith("trigger")
            ways[COMPILED] = self.compiled(ways["ours"], behind + self.options.tokens)
        return found

    def compiled(self, search: Callable[[int], list[Point]], tokens: int) -> Callable[[int], list[Point]]:
        plain, bodies = self.victim, dict[int, Victim]()

        def victim() -> Victim:
            if tokens not in bodies:
                bodies[tokens] = plain()
                compile_search(Execution(compile="default"), bodies[tokens], tokens)
            return bodies[tokens].counted_anew()

        def made(seed: int) -> list[Point]:
            self.victim = victim  # type: ignore[method-assign]
            victim()
            try:
                return search(seed)
            finally:
                self.victim = plain  # type: ignore[method-assign]

        return made

    def _tasks(self) -> dict[str, dict[str, Callable[[int], list[Point]]]]:
        one, several = 1, self.options.texts
        return {
            "trigger, one text": {"ours": lambda seed: self.trigger(seed, one), "nanoGCG": self.nanogcg},
            "trigger, texts": {"ours": lambda seed: self.trigger(seed, several), "Wallace": self.wallace},
            "flips": {
                "ours": lambda seed: self.flips(seed, one),
                "TextAttack": lambda seed: self.textattack(seed, one),
            },
            "flips, texts": {
                "ours": lambda seed: self.flips(seed, several),
                "TextAttack": lambda seed: self.textattack(seed, several),
            },
        }

    def texts(self, seed: int, count: int) -> list[list[int]]:
        chosen = np.random.default_rng(seed).permutation(len(self.documents))[:count]
        return [self.documents[place] for place in chosen.tolist()]

    def steps(self, texts: int) -> int:
        """One text costs little: more steps."""
        return self.options.steps * (2 if texts == 1 else 1)

    def victim(self) -> Victim:
        return Victim(self.model, END, self.options.batch, self.options.precision)

    def seconds(self) -> float:
        if self.options.device == "cuda":
            torch.cuda.synchronize()
            return time.monotonic()
        return time.process_time()

    # ------------------------------------------------------------------------------------------------------- ours

    def trigger(self, seed: int, count: int) -> list[Point]:
        options, points = self.options, []
        attack = TriggerAttack(
            trigger_tokens=options.trigger, restarts=1, iterations=self.steps(count), candidates=options.candidates,
            batch_documents=count, text_tokens=options.tokens,
        )  # fmt: skip
        began = self.seconds()
        search = TriggerSearch(self.victim(), self.texts(seed, count), self.usable_V, attack, seed)
        while not search.finished:
            search.step()
            now, spent = self.seconds(), search.victim.count.as_forwards
            points.append(Point(now - began, spent, mean_loss(self.victim(), search.trigger, search.texts)))
            began += self.seconds() - now  # to judge it is no part of the search
        return points

    def flip_attack(self) -> FlipAttack:
        return FlipAttack(flips=self.options.flips, candidates=self.options.candidates)

    def flips(self, seed: int, count: int) -> list[Point]:
        """The losses are means over the texts, per scored token."""
        attack, victim, began, points = self.flip_attack(), self.victim(), self.seconds(), []
        searches = [FlipSearch(victim, text, self.usable_V, attack, seed) for text in self.texts(seed, count)]
        advance(searches)  # their clean losses
        for done in range(1, attack.rounds_on_a_text + 1):
            advance(searches)
            losses = [search.found.loss_sums[-1] / int(search.scored_L.sum()) for search in searches]
            forwards = count * (1 + done * attack.forwards_of_a_step)
            points.append(Point(self.seconds() - began, forwards, statistics.mean(losses)))
        return points

    # ----------------------------------------------------------------------------------------------------- theirs

    def nanogcg(self, seed: int) -> list[Point]:
        (text,), width = self.texts(seed, 1), self.options.candidates
        curve = attack_peers.nanogcg(self.model, END, self.start(seed), text, self.usable_V, width, seed)
        return self.followed(curve, self.steps(1))

    def wallace(self, seed: int) -> list[Point]:
        texts, each = self.texts(seed, self.options.texts), max(1, self.options.candidates // self.options.trigger)
        curve = attack_peers.wallace(self.model, END, self.start(seed), repeat(texts), self.usable_V, each)
        return self.followed(curve, self.steps(self.options.texts) * self.options.trigger)

    def textattack(self, seed: int, count: int) -> list[Point]:
        """Of several texts one after the other, as it goes: a point says what all had found at equal steps."""
        attack, runs = self.flip_attack(), []
        for text in self.texts(seed, count):
            writable = writable_positions(text, attack, seed)
            curve = attack_peers.textattack(
                self.model, END, text, writable, self.usable_V, attack.candidates, attack.flips, self.options.batch
            )
            runs.append(self.followed(curve, attack.rounds_on_a_text))
        return [
            Point(sum(p.seconds for p in each), sum(p.forwards for p in each), statistics.mean(p.loss for p in each))
            for each in zip(*runs, strict=True)
        ]

    def start(self, seed: int) -> list[int]:
        """As TriggerSearch draws it."""
        return random_tokens(self.usable_V, self.options.trigger, [seed, 0, 0])

    def followed(self, curve: attack_peers.Curve, steps: int) -> list[Point]:
        began, points = self.seconds(), []
        with torch.autocast(self.options.device, torch.bfloat16, enabled=self.options.precision == "bf16"):
            for _ in range(steps):
                forwards, loss, _ = next(curve)
                points.append(Point(self.seconds() - began, forwards, loss))
        return points


def report(task: str, found: dict[str, list[list[Point]]], ideal_seconds: float) -> None:
    """Speed and loss of each searcher, medians over the seeds; losses at the lesser of both spendings of a seed."""
    ours, peer = found.values()
    pairs = list(zip(ours, peer, strict=True))
    forwards = [min(a[-1].forwards, b[-1].forwards) for a, b in pairs]
    seconds = [min(a[-1].seconds, b[-1].seconds) for a, b in pairs]
    rates = {}
    for name, runs in found.items():
        rates[name] = [points[-1].forwards / points[-1].seconds for points in runs]
        at_forwards = [best(points, "forwards", limit) for points, limit in zip(runs, forwards, strict=True)]
        at_seconds = [best(points, "seconds", limit) for points, limit in zip(runs, seconds, strict=True)]
        sys.stdout.write(
            f"{task:18} {name:11} {statistics.median(rates[name]):7.0f} seq/s "
            f"({min(rates[name]):.0f} to {max(rates[name]):.0f}), {statistics.median(rates[name]) * ideal_seconds:.0%} "
            f"of the matrix rate; nats/token at equal forwards {statistics.median(at_forwards):.3f}, "
            f"at equal time {statistics.median(at_seconds):.3f}\n"
        )
    first, second = rates.values()
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    better = sum(
        best(a, "forwards", limit) >= best(b, "forwards", limit) for (a, b), limit in zip(pairs, forwards, strict=True)
    )
    sys.stdout.write(
        f"{task:18} {' / '.join(rates)} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"at least as strong at equal forwards in {better} of {len(pairs)}\n"
    )


def best(points: list[Point], spent: str, limit: float) -> float:
    """The loss that a search had found when it had spent so much; of one whose first step cost more: of that step."""
    return max([point.loss for point in points if getattr(point, spent) <= limit], default=points[0].loss)


def matmul_rate(options: Any) -> float:
    """Floating-point operations a second of large matrix products, in the precision of the search."""
    size = 8192 if options.device == "cuda" else 1024
    kind = torch.bfloat16 if options.precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=options.device, dtype=kind) for _ in range(2))
    rates = []
    for _ in range(9):
        began = time.monotonic() if options.device == "cuda" else time.process_time()
        a @ b
        if options.device == "cuda":
            torch.cuda.synchronize()
        ended = time.monotonic() if options.device == "cuda" else time.process_time()
        rates.append(2 * size**3 / (ended - began))
    return statistics.median(rates)


def trained(options: Any) -> tuple[Any, list[list[int]]]:
    """A GPT-NeoX of 2 M parameters after a short training on docstrings, and these; a token is a word or a mark.

    A larger one as its weights were drawn.
    """
    texts = [re.findall(r"\w+|\W", bytes(document.astype(np.uint8)).decode()) for document in language.documents()]
    common = Counter(word for text in texts for word in text).most_common(language.SIZES["2M"]["vocab_size"] - 2)
    ids = {word: number for number, (word, _) in enumerate(common, start=2)}
    documents = [[ids.get(word, 1) for word in text] for text in texts]
    joined = torch.tensor([token for document in documents for token in [END, *document]])
    blocks = joined[: len(joined) // language.LENGTH * language.LENGTH].view(-1, language.LENGTH)
    model = language.network(options.size, options.device)
    if options.size != "2M":
        return model, documents
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(TRAINING_STEPS):
        optimizer.zero_grad()
        loss = block_losses(model, blocks[torch.randint(len(blocks), (16,))].to(options.device)).mean()
        loss.backward()
        optimizer.step()
    sys.stdout.write(f"trained to {loss.item():.2f} nats per token on {len(blocks)} blocks\n")
    return model, documents


def loaded(options: Any) -> tuple[Any, list[list[int]]]:
    """The model of this folder, and the docstrings in its tokens."""
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    texts = [bytes(document.astype(np.uint8)).decode() for document in language.documents()]
    return load(Path(options.model)).to(options.device), tokenizer(texts, add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    main()
