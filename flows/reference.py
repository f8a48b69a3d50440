"""The reference of a study: every key of its configuration as Markdown, made from the classes that check it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from deployments.page import Page
from tasks.stage.keys import Key, keys_of

HEADER = ("key", "type", "unit", "default", "limits", "new run", "meaning")


def reference(page: Page) -> str:
    """The text of `docs/reference.md`: one table for the keys that stand alone, then one for each group."""
    keys = keys_of(page.model)
    groups = {key.path.partition(".")[0]: "" for key in keys if "." in key.path}
    groups |= {name: page.model.model_fields[name].description or "" for name in groups}
    groups["execution"] = groups.pop("execution")  # last, as in the form: what is studied comes first
    parts = [_head(page), *_section("Keys of the study itself", "", [key for key in keys if "." not in key.path])]
    for name, description in groups.items():
        parts += _section(f"`{name}`", description, [key for key in keys if key.path.startswith(f"{name}.")])
    return "\n\n".join(parts)


def _head(page: Page) -> str:
    study = page.file.name if page.is_own else page.name
    return f"""\
# Every key of the study {page.name}

<!-- Made by `ratchet reference {study}`; a test compares. -->

A key stands in a profile (a YAML file), in `--set key=value`, or in the form of the Prefect UI. `ratchet run {study} \
--keys` prints the same in a terminal.

- **default**: what holds where the key is not given; *required*: it must be given where its group is. Profiles give \
other values: `ratchet run {study} --show-config` prints what holds in one.
- **new run**: *yes* is a scientific key. Another value is another computation, so the stages that read it, and those \
after them, get run directories of their own. *no* is an execution key: it says how the work is done on this machine, \
and names no run."""


def _section(title: str, description: str, keys: Sequence[Key]) -> Iterator[str]:
    yield f"## {title}" + (f"\n\n{description}" if description else "")
    for only_with, some in groupby(keys, lambda key: key.only_with):
        table = "\n".join(_row(cells) for cells in [HEADER, ["---"] * len(HEADER), *map(_cells, some)])
        yield f"With `{only_with}`:\n\n{table}" if only_with else table


def _cells(key: Key) -> list[str]:
    default, limits = (f"`{value}`" if value else "" for value in (key.default, key.limits))
    new_run = "yes" if key.field_class == "scientific" else "no"
    return [f"`{key.path}`", key.type, key.unit, default or "required", limits, new_run, key.description]


def _row(cells: Sequence[str]) -> str:
    within = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(within)} |"
