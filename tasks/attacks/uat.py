"""uat: the universal trigger that a gradient search finds for one model, judged on texts that it has not seen."""

import torch

from storage.records import Rows
from tasks.attacks.compiled import compile_search
from tasks.attacks.ledger import Ledger
from tasks.attacks.results import Restart, TriggerSearched, UatResult
from tasks.attacks.scoring import Victim, targets
from tasks.attacks.stages import JUDGED, KEY_COLUMNS, SEARCHED, UatConfig
from tasks.attacks.texts import attacked_texts, usable_tokens, victim
from tasks.attacks.trigger import SearchState, TriggerSearch, control_triggers, mean_loss
from tasks.language.texts import Text, tokenizer_of
from tasks.stage.run import StageInput, StageRun

DOCUMENTS_IN_A_PART = 16


def uat(run: StageRun, config: UatConfig, text: StageInput, model: StageInput) -> UatResult:
    """Learns a trigger on attack-search and judges it on attack-evaluation, in fp32.

    Beside it stand a blind search that spends as much, and random triggers of the same length. Writes one record for
    each document. The budget is counted and the same for every model. A continuation goes on within a restart.
    """
    attack, tokenizer, settings = config.attack, tokenizer_of(text), config.execution
    search_texts = attacked_texts(text, SEARCHED, attack.text_tokens)
    judged = attacked_texts(text, JUDGED, attack.text_tokens)
    ledger = Ledger[SearchState](run, settings)

    with run.watched(settings.stall_minutes):
        judge = victim(text, model.path / config.folder, settings)
        usable_V = usable_tokens(tokenizer, len(judge.embeddings_VD))
        searching = judge.searching(attack.search_precision)
        longest = attack.trigger_tokens + max(map(len, search_texts))
        compile_search(settings, searching, longest)
        searches: dict[str, TriggerSearch] = {}
        for name in ("gradient", "blind"):
            searches[name] = TriggerSearch(
                searching.counted_anew(),
                search_texts,
                usable_V,
                attack,
                config.seed,
                with_gradient=name == "gradient",
                state=ledger.searches.get(name),
            )
            _follow(run, ledger, name, searches[name])
        clean = mean_loss(judge, [], search_texts)
        triggers = {name: _searched(search, clean) for name, search in searches.items()}
        controls = control_triggers(usable_V, attack, config.seed)
        pair = (triggers["gradient"], triggers["blind"])
        parts = [judged[first : first + DOCUMENTS_IN_A_PART] for first in range(0, len(judged), DOCUMENTS_IN_A_PART)]
        keys = run.each(parts, lambda part: _rows(config.model, judge, part, *pair, controls), "parts", "judging")
    run.merge_records(keys, KEY_COLUMNS)
    return UatResult(**triggers)


def _searched(search: TriggerSearch, clean: float) -> TriggerSearched:
    state = search.state
    return TriggerSearched(
        search_loss_clean_nats_per_token=clean,
        restarts=[Restart.model_validate(restart) for restart in state["restarts"]],
        budgets=state["budgets"],
        **state["count"],
    )


def _follow(run: StageRun, ledger: Ledger[SearchState], name: str, search: TriggerSearch) -> None:
    """Runs `search` to its end."""
    total = 2 * search.attack.restarts * search.attack.iterations
    while not search.finished:
        restart = len(search.state["restarts"]) + 1
        run.progress.update(ledger.done, total, "iterations", f"{name} search, restart {restart}")
        search.step()
        ledger.keep(ledger.searches | {name: search.state}, now=search.finished)


def _rows(
    name: str,
    judge: Victim,
    texts: list[Text],
    gradient: TriggerSearched,
    blind: TriggerSearched,
    controls: list[list[int]],
) -> Rows:
    """Losses of the texts' own tokens, the same tokens in all: clean, attacked, blindly attacked and controls."""

    def sums(prefix: list[int]) -> list[float]:
        return torch.stack([loss.sum() for loss in judge.losses([prefix] * len(texts), texts)]).tolist()

    clean, blindly = sums([]), sums(blind.best.trigger_ids)
    shares = [sums(trigger) for trigger in gradient.budgets.values()]
    random = [sums(trigger) for trigger in controls]
    return [
        {
            "model": name,
            "example_id": text.example_id,
            "source": text.source,
            "text_tokens": len(targets(text)),
            "tokens_scored": len(targets(text)),
            "loss_sum_nats": shares[-1][row],
            "clean_loss_sum_nats": clean[row],
            "text_clean_loss_sum_nats": clean[row],
            "control_losses_sum_nats": [of_all[row] for of_all in random],
            "blind_loss_sum_nats": blindly[row],
            "budget_losses_sum_nats": [of_all[row] for of_all in shares],
        }
        for row, text in enumerate(texts)
    ]
