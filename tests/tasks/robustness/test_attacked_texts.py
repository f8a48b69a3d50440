"""The texts in the report are those that were attacked, with what the attack wrote marked, and short."""

import html as markup
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from storage.records import read_records
from tasks.attacks.results import TriggerSearched
from tasks.attacks.stages import JUDGED
from tasks.attacks.texts import attacked_texts as texts_of
from tasks.findings.table import visible
from tasks.language.texts import tokenizer_of
from tasks.language.tokenizer import text_of
from tasks.robustness import attacked_texts
from tasks.robustness.attacked_texts import MOST_TOKENS, _chosen, _kept, _Read
from tests.tasks.robustness.edited import aggregated, contents, set_rise, written
from tests.tasks.tiny import finished_study


def row(example_id: str, added: float, tokens: int = 10) -> dict[str, Any]:
    return {
        "example_id": example_id,
        "tokens_scored": tokens,
        "clean_loss_sum_nats": 1.0,
        "loss_sum_nats": 1.0 + added * tokens,
    }


def test_the_worst_text_is_the_one_with_most_per_token_and_the_typical_one_stands_in_the_middle():
    rows = [row("a", 0.3), row("b", 0.5, tokens=2), row("c", 0.1, tokens=100), row("d", 0.2), row("e", 0.4)]
    assert [(kind, found["example_id"]) for kind, found in _chosen(rows)] == [("worst", "b"), ("typical", "a")]
    assert [found["example_id"] for _, found in _chosen([row("b", 0.1), row("a", 0.1)])] == ["b", "a"]


@pytest.mark.parametrize("marked", [[0], [5, 190], list(range(0, 200, 9)), list(range(80)), []])
def test_an_excerpt_is_short_and_shows_what_was_written(marked: list[int]):
    parts = _kept([place in marked for place in range(200)])
    shown = [place for begin, end in parts for place in range(begin, end)]
    assert len(shown) <= MOST_TOKENS and len(shown) > MOST_TOKENS // 2
    assert {place for place in marked if place <= max(shown)} <= set(shown) and set(marked[:1]) <= set(shown)
    assert all(one[1] < other[0] for one, other in pairwise(parts))


def test_a_short_text_is_shown_whole():
    assert _kept([False] * 20 + [True] + [False] * 20) == [(0, 41)]


def page(folder: Path, edit: Any = lambda stages: None) -> str:
    stages = contents()
    edit(stages)
    _, path = aggregated(folder / "out", written(folder, stages), finished_study().study)
    return (path / "report.html").read_text()


def excerpts_of(html: str) -> dict[str, dict[str, str]]:
    """Beginning of the caption -> name of the line -> its text, with what is marked between square brackets."""
    found: dict[str, dict[str, str]] = {}
    figure = r'<figure class="excerpt"><figcaption>(.*?)</figcaption><dl>(.*?)</dl>'
    for caption, lines in re.findall(figure, html, re.S):
        named = {}
        for name, text in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", lines, re.S):
            named[name] = markup.unescape(re.sub(r"<mark>(.*?)</mark>", r"[\1]", text, flags=re.S))
        found[("uat " if "behind the trigger" in named else "hotflip ") + caption.partition(":")[0]] = named
    return found


def test_of_each_living_arm_the_worst_and_the_typical_text_of_each_attack_stand_in_the_report(tmp_path: Path):
    shown = excerpts_of(page(tmp_path))
    arms, kinds = ("baseline", "monotonic", "random-signs"), ("worst", "typical")
    assert set(shown) == {f"{attack} {arm}, {kind}" for attack in ("uat", "hotflip") for arm in arms for kind in kinds}


def test_a_flipped_text_is_that_of_the_records_before_and_after(tmp_path: Path):
    """Told apart by this test: the search on the model itself is made the strongest for every text."""

    def alone(stages: Any) -> None:
        for of in stages["transfer"]["rows"]:
            if of["attack"] == "hotflip" and of["found_for"] != of["model"]:  # its own are those of its records
                of["loss_sum_nats"] = of["clean_loss_sum_nats"] - 1.0

    html = page(tmp_path, alone)
    study, setup = finished_study(), finished_study().handles["setup"].as_input()
    attack, tokenizer = study.study.hotflip, tokenizer_of(setup)
    tokens = {text.example_id: text.tokens for text in texts_of(setup, JUDGED, attack.text_tokens)}
    rows = list(read_records(study.path("hotflip-monotonic") / "records.parquet"))
    worst = max(rows, key=lambda one: (one["loss_sum_nats"] - one["clean_loss_sum_nats"]) / one["tokens_scored"])
    own = list(tokens[worst["example_id"]])
    attacked = list(own)
    for place, token in zip(worst["positions"], worst["replacements"], strict=True):
        attacked[place] = token
    shown = excerpts_of(html)["hotflip monotonic, worst"]
    plain = {name: re.sub(r"\[(.*?)\]", r"\1", text) for name, text in shown.items()}
    assert plain == {"before": visible(text_of(tokenizer, own)), "after": visible(text_of(tokenizer, attacked))}
    flips = [visible(text_of(tokenizer, [attacked[place]])) for place in sorted(worst["positions"])]
    assert "".join(re.findall(r"\[(.*?)\]", shown["after"])) == "".join(flips) and flips


def test_the_strongest_trigger_stands_in_front_of_the_text(tmp_path: Path):
    shown = excerpts_of(page(tmp_path))["uat monotonic, typical"]["behind the trigger"]
    tokenizer = tokenizer_of(finished_study().handles["setup"].as_input())
    triggers = [
        visible(text_of(tokenizer, TriggerSearched.model_validate(found[search]).best.trigger_ids))
        for model in finished_study().study.attacked()
        for found in [contents()[f"uat-{model}"]["result"]]
        for search in ("gradient", "blind")
    ]
    (trigger,) = re.findall(r"^\[(.*?)\](?!\[)", shown, re.S)
    assert trigger in triggers


def test_a_dead_arm_has_no_texts(tmp_path: Path):
    def dead(stages: Any) -> None:
        set_rise(stages, "random-signs", 0.01)

    assert not [name for name in excerpts_of(page(tmp_path, dead)) if "random-signs" in name]


def test_text_that_looks_like_markup_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_Read, "_decoded", lambda self, ids: "<script>alert(1)</script>\n" * len(ids))
    html = page(tmp_path)
    assert html.count("<script>") == 1 and "&lt;script&gt;alert(1)&lt;/script&gt;\\n" in html


def test_what_is_shown_is_at_most_so_many_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attacked_texts, "MOST_TOKENS", 4)
    monkeypatch.setattr(_Read, "_decoded", lambda self, ids: "x" * len(ids))
    for lines in excerpts_of(page(tmp_path)).values():
        assert all(0 < text.count("x") <= 4 and attacked_texts.LEFT_OUT in text for text in lines.values())
