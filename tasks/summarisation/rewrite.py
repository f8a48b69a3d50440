"""rewrite: what every model writes of attacked articles, beside what it writes of the same articles as they were."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import require
from storage.records import Rows, read_records
from tasks.attacks.flips import written_into
from tasks.attacks.results import UatResult
from tasks.attacks.stages import JUDGED
from tasks.language.pairs import packed_pairs
from tasks.language.texts import Text, texts_of, tokenizer_of
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.evaluate import DOCUMENTS_IN_A_PART, Writer, scores
from tasks.summarisation.stages import AuditConfig, RewriteConfig

KEY_COLUMNS = ("attack", "model", "example_id")


@dataclass(frozen=True)
class Attacked:
    """An article under the attack that the gradient search on a model found: its tokens before and after."""

    attack: str
    pair: Text
    clean: list[int]
    read: list[int]
    row: dict[str, Any]
    """The record of the attack."""


def rewrite(run: StageRun, config: RewriteConfig, text: StageInput, **inputs: StageInput) -> dict[str, object]:
    """Writes one record for each attack, model and attacked pair, with both summaries and their scores."""
    tokenizer = tokenizer_of(text)
    keys: list[str] = []
    with run.watched(config.execution.stall_minutes):
        for done, (name, place) in enumerate(config.models.items()):
            role, folder = place.split("/", 1)
            writer = functools.cache(functools.partial(Writer.of, inputs[role].path / folder, tokenizer, config))
            texts = list(attacked(config, text, inputs, name))
            parts = [texts[first : first + DOCUMENTS_IN_A_PART] for first in range(0, len(texts), DOCUMENTS_IN_A_PART)]

            def rows(part: list[Attacked], name: str = name, writer: Callable[[], Writer] = writer) -> Rows:
                before, after = ([getattr(attacked_text, side) for attacked_text in part] for side in ("clean", "read"))
                written = zip(part, writer().write(before), writer().write(after), strict=True)
                return [
                    {
                        "attack": attacked_text.attack,
                        "model": name,
                        "example_id": attacked_text.pair.example_id,
                        "source": attacked_text.pair.source,
                        "written": attacked,
                        "clean_written": clean,
                        **scores("", attacked_text.pair.summary, attacked),
                        **scores("clean_", attacked_text.pair.summary, clean),
                    }
                    for attacked_text, clean, attacked in written
                ]

            total = len(config.models) * len(parts)
            keys += run.each(parts, rows, "parts", name, f"{done:03d}-", done * len(parts), total)
    run.merge_records(keys, KEY_COLUMNS)
    return {}


def attacked(
    config: RewriteConfig | AuditConfig, text: StageInput, inputs: Mapping[str, StageInput], model: str
) -> Iterator[Attacked]:
    """What a model read of every attacked article, built anew of the records; `inputs` as `uat-...`, `hotflip-...`."""
    known = {pair.example_id: pair for pair in texts_of(text, JUDGED)}
    packed = packed_pairs(text.path / "text")
    prefix = packed.prefix_ids if packed else []
    trigger = UatResult.read(inputs[f"uat-{model}"]).gradient.best.trigger_ids
    for attack, most in (("uat", config.uat.text_tokens), ("hotflip", config.hotflip.text_tokens)):
        for row in read_records(inputs[f"{attack}-{model}"].path / "records.parquet"):
            attacked_one = row["example_id"] in known
            require(attacked_one, f"{attack} on {model} attacked a pair of {JUDGED}", row["example_id"], "one of them")
            pair = known[row["example_id"]]
            *own, end = pair.read
            article = own[len(prefix) :][:most]
            changed = [*trigger, *article] if attack == "uat" else [*written_into(article, row)]
            yield Attacked(attack, pair, [*prefix, *article, end], [*prefix, *changed, end], row)
