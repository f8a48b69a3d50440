"""The reference of all keys, as Markdown: a page for those that studies have alike, and one for each study's own.

python -m tools.reference [STUDY] > docs/reference[-STUDY].md
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from deployments.dag.page import Page, load_page
from deployments.dag.sources import page_names
from tasks.stage.configuration import Configuration
from tasks.stage.keys import Key, keys_of

HEADER = ("key", "type", "unit", "default", "limits", "new run", "meaning")


def reference(page: Page) -> str:
    """The text of `docs/reference-STUDY.md`; keys that other studies have alike stand there by name alone."""
    study, shared = page.name, shared_keys()
    head = f"""\
# Keys of the study {page.name}

<!-- Made by `python -m tools.reference {study}`; a test compares. -->

`ratchet run {study} --keys` prints all in a terminal, `ratchet run {study} --show-config` the values of a profile. \
[reference.md](reference.md) says what the columns mean, and has the keys that other studies have alike."""
    parts = [head]
    for group, title, keys in _groups(keys_of(page.model)):
        parts.append(f"## {title}")
        parts += [description] if (description := _description(page.model, group)) else []
        parts += _tables(HEADER, {key: _cells(key) for key in keys if key not in shared})
        if elsewhere := dict.fromkeys(f"`{key.path}`" for key in keys if key in shared):
            anchor = group or "keys-of-the-study-itself"
            parts.append(f"In [reference.md](reference.md#{anchor}): {', '.join(elsewhere)}.")
    return "\n\n".join(parts)


def shared_reference() -> str:
    """The text of `docs/reference.md`: the keys that several studies have alike, and which studies these are."""
    studies, shared = page_names(), shared_keys()
    links = ", ".join(f"[{name}](reference-{name}.md)" for name in studies)
    head = f"""\
# Keys that studies have alike

<!-- Made by `python -m tools.reference`; a test compares. -->

A key stands in a profile (a YAML file), in `--set key=value`, or in the form of the Prefect UI. This page has the \
keys that two or more studies have, the same in each; what one has by itself stands on its own page: {links}.

- **default**: what holds where the key is not given; *required*: it must be given where its group is. Profiles give \
other values: `ratchet run {studies[-1]} --show-config` prints what holds in one.
- **new run**: *yes* is a scientific key. Another value is another computation, so the stages that read it, and those \
after them, get run directories of their own. *no* is an execution key: it says how the work is done on this machine, \
and names no run.
- **studies**: which have the key; *all* are these {len(studies)}."""
    parts = [head]
    for group, title, keys in _groups([*shared]):
        parts.append(f"## {title}")
        models = [load_page(name).model for name in dict.fromkeys(name for key in keys for name in shared[key])]
        descriptions = {_description(model, group) for model in models}
        parts += descriptions if len(descriptions) == 1 and descriptions != {""} else []
        studies_of = {key: "all" if len(shared[key]) == len(studies) else ", ".join(shared[key]) for key in keys}
        parts += _tables((*HEADER, "studies"), {key: [*_cells(key), studies_of[key]] for key in keys})
    return "\n\n".join(parts)


def shared_keys() -> dict[Key, list[str]]:
    """Each key that is the same in two or more studies, with their names."""
    keys: dict[Key, list[str]] = {}
    for name in page_names():
        for key in dict.fromkeys(keys_of(load_page(name).model)):
            keys.setdefault(key, []).append(name)
    return {key: names for key, names in keys.items() if len(names) > 1}


def _groups(keys: Sequence[Key]) -> Iterator[tuple[str, str, list[Key]]]:
    """Group, title and keys; those that stand alone first, `execution` last, as in the form."""
    groups = dict.fromkeys(key.path.partition(".")[0] if "." in key.path else "" for key in keys)
    for group in sorted(groups, key=lambda name: (name != "", name == "execution")):
        within = [key for key in keys if (key.path.partition(".")[0] if "." in key.path else "") == group]
        choices = [*dict.fromkeys(key.only_with for key in within)]
        within.sort(key=lambda key: choices.index(key.only_with))
        yield group, f"`{group}`" if group else "Keys of the study itself", within


def _description(model: type[Configuration], group: str) -> str:
    return (model.model_fields[group].description or "") if group else ""


def _tables(header: Sequence[str], rows: Mapping[Key, Sequence[str]]) -> Iterator[str]:
    """A table for each choice that brings keys."""
    for only_with, keys in groupby(rows, lambda key: key.only_with):
        table = "\n".join(_row(cells) for cells in [header, ["---"] * len(header), *(rows[key] for key in keys)])
        yield f"With `{only_with}`:\n\n{table}" if only_with else table


def _cells(key: Key) -> list[str]:
    default, limits = (f"`{value}`" if value else "" for value in (key.default, key.limits))
    new_run = "yes" if key.field_class == "scientific" else "no"
    return [f"`{key.path}`", key.type, key.unit, default or "required", limits, new_run, key.description]


def _row(cells: Sequence[str]) -> str:
    within = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(within)} |"


if __name__ == "__main__":
    sys.stdout.write((reference(load_page(sys.argv[1])) if sys.argv[1:] else shared_reference()) + "\n")
