"""hotflip: in each text of attack-evaluation a few tokens are replaced; only those that nobody may write are scored."""

from typing import Any

from transformers import PreTrainedTokenizerBase

from tasks.attacks.compiled import compile_search
from tasks.attacks.effects import succeeded
from tasks.attacks.flips import FlipSearch, advance, random_flips
from tasks.attacks.ledger import Ledger
from tasks.attacks.scoring import Victim, targets
from tasks.attacks.stages import JUDGED, KEY_COLUMNS, HotFlipConfig
from tasks.attacks.texts import attacked_texts, usable_tokens, victim
from tasks.language.texts import Text, tokenizer_of
from tasks.language.tokenizer import round_trips
from tasks.stage.run import StageInput, StageRun


def hotflip(run: StageRun, config: HotFlipConfig, text: StageInput, model: StageInput) -> dict[str, object]:
    """Attacks every text by itself, beside a blind search that spends as much, and as many random flips; fp32 judges.

    Writes one record for each text, each a part of its own. On a GPU so many texts are searched at once as fill its
    passes. The state of searches is kept now and then, so that a continuation loses little of them.
    """
    attack, tokenizer, settings = config.attack, tokenizer_of(text), config.execution
    texts = attacked_texts(text, JUDGED, attack.text_tokens, attack.documents)
    with run.watched(settings.stall_minutes):
        judge = victim(text, model.path / config.folder, settings)
        attacker = _Attacker(run, config, judge, tokenizer, texts)
        keys = run.each(range(len(texts)), lambda number: [attacker.row(number)], "texts")
    run.merge_records(keys, KEY_COLUMNS)
    return {}


class _Attacker:
    """Makes one record after the other, on one model; `texts` are searched in groups of `together`."""

    def __init__(
        self, run: StageRun, config: HotFlipConfig, judge: Victim, tokenizer: PreTrainedTokenizerBase, texts: list[Text]
    ) -> None:
        self.run, self.config, self.judge, self.tokenizer, self.texts = run, config, judge, tokenizer, texts
        self.searching = judge.searching(config.attack.search_precision)
        self.usable_V = usable_tokens(tokenizer, len(judge.embeddings_VD))
        self.together = texts_together(judge)
        compile_search(config.execution, self.searching, max(map(len, texts)))
        self.ledger, self.group = Ledger[list[Any]](run, config.execution), -1
        self.searches: dict[str, list[FlipSearch]] = {}

    def searched(self, number: int) -> tuple[FlipSearch, FlipSearch]:
        """The searches in a text, by the gradient and blind, with those of its group."""
        if self.group != number // self.together:
            self.group = number // self.together
            self.searches = {name: self._search(name) for name in ("gradient", "blind")}
        place = number % self.together
        return self.searches["gradient"][place], self.searches["blind"][place]

    def _search(self, name: str) -> list[FlipSearch]:
        """The searches of one kind in all texts of the group, run to their end."""
        config, first = self.config, self.group * self.together
        texts, key = self.texts[first : first + self.together], f"{name} {self.group}"
        searches = [
            FlipSearch(
                self.searching,
                text,
                self.usable_V,
                config.attack,
                config.seed,
                with_gradient=name == "gradient",
                state=state,
            )
            for text, state in zip(texts, self.ledger.searches.get(key) or [None] * len(texts), strict=True)
        ]
        while not searches[0].finished:
            rounds = f"{name} search, round {len(searches[0].found.loss_sums)} of {config.attack.rounds_on_a_text}"
            self.run.progress.update(first, len(self.texts), "texts", rounds)
            advance(searches)
            kept = {kind: state for kind, state in self.ledger.searches.items() if kind.endswith(f" {self.group}")}
            now = searches[0].finished and self.together > 1
            self.ledger.keep(kept | {key: [search.found.as_json() for search in searches]}, now=now)
        return searches

    def row(self, number: int) -> dict[str, Any]:
        text, attack, seed = self.texts[number], self.config.attack, self.config.seed
        gradient, blind = self.searched(number)
        flips, blindly = gradient.found, blind.found
        control = random_flips(text, self.usable_V, attack, seed)
        judged = [text, blindly.tokens, *flips.after_shares, *control]
        losses = self.judge.losses([[]] * len(judged), judged)
        clean, blind_loss, *others = (loss_L[gradient.scored_L].sum().item() for loss_L in losses)
        shares, controls = others[: len(flips.after_shares)], others[len(flips.after_shares) :]
        positions, blind_positions = flips.positions(text), blindly.positions(text)
        row = {
            "model": self.config.model,
            "example_id": text.example_id,
            "source": text.source,
            "text_tokens": len(targets(text)),
            "tokens_scored": int(gradient.scored_L.sum()),
            "loss_sum_nats": shares[-1],
            "clean_loss_sum_nats": clean,
            "text_clean_loss_sum_nats": losses[0].sum().item(),
            "control_losses_sum_nats": controls,
            "blind_loss_sum_nats": blind_loss,
            "budget_losses_sum_nats": shares,
            "success": False,  # asked below, of these losses
            "writable": gradient.writable,
            "positions": positions,
            "replacements": [flips.tokens[position] for position in positions],
            "blind_positions": blind_positions,
            "blind_replacements": [blindly.tokens[position] for position in blind_positions],
            "flips": len(positions),
            "round_trips": round_trips(self.tokenizer, flips.tokens),
            "search_losses_sum_nats": flips.loss_sums,
            "forward_sequences": flips.count.forward_sequences,
            "backward_sequences": flips.count.backward_sequences,
            "blind_forward_sequences": blindly.count.forward_sequences,
        }
        return row | {"success": succeeded(row, attack.success_relative_increase)}


def texts_together(victim: Victim) -> int:
    """Texts searched at once: on a GPU as many as have their gradients in a pass; a CPU shares the prefixes of one."""
    return victim.batch if victim.device.type == "cuda" else 1
