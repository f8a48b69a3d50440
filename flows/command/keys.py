"""Every key of a study's configuration, made from the classes that check it: for a terminal, as Markdown, and for a
shell that completes them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

import flows
from deployments.dag.page import Page, load_page
from deployments.dag.sources import page_names
from flows.command.options import ratchet_parser
from flows.command.terminal import show
from storage.errors import BadInput, did_you_mean
from tasks.stage.keys import Key, keys_of

PROFILES = Path(flows.__path__[0], "profiles")
HEADER = ("key", "type", "unit", "default", "limits", "new run", "meaning")


def show_keys(page: Page, group: str) -> int:
    """Prints every key of a study, or of one group of them, or those in whose name the word is. BadInput for others."""
    keys = keys_of(page.model)
    asked = keys_of(page.model, group) or [key for key in keys if group in key.path]
    if not asked:
        groups = sorted({key.path.split(".")[0] for key in keys})
        close = did_you_mean(group, [*groups, *(key.path for key in keys)])
        raise BadInput(f"--keys {group}: {page.name} has no such key or group; {close}it has {', '.join(groups)}")
    only_with = ""
    for key in asked:
        if key.only_with != only_with and key.only_with:
            show(f"\nwith {key.only_with}:", style="bold")
        only_with = key.only_with
        default = f"default {key.default}" if key.default else "required"
        facts = [key.type + (f" ({key.unit})" if key.unit else ""), default, *filter(None, [key.limits])]
        facts += ["names no run: not in the fingerprint"] if key.field_class == "execution" else []
        show(key.path, style="bold")
        show(f"    {', '.join(facts)}\n    {key.description}")
    return 0


def show_configuration(study: Any) -> int:
    """Prints the whole study: given to `--profile` as a file, it is the same study."""
    return show(yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False).rstrip())


def print_reference(options: argparse.Namespace) -> int:
    """`ratchet reference`: prints the reference of a study."""
    return show(reference(load_page(options.study)))


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


def print_completion(options: argparse.Namespace) -> int:
    """Prints the completion of `ratchet` for a shell."""
    import shtab

    names = page_names()
    profiles = {name: " ".join(sorted(file.stem for file in PROFILES.glob(f"{name}/*.yaml"))) for name in names}
    keys = {name: f"$(ratchet run {name} --keys | grep -v '[ :]')" for name in names}
    complete = {
        "study": _completer("studies", {"": " ".join(names)}, files=True),
        "profile": _completer("profiles", profiles, files=True),
        "changes": _completer("keys", keys),
        "over": _completer("keys", keys),
    }
    ratchet, commands = ratchet_parser()
    for command in commands.values():
        for action in command._actions:
            if action.dest in complete:
                action.complete = complete[action.dest]  # type: ignore[attr-defined]
    return show(shtab.complete(ratchet, options.shell))


def _completer(name: str, words: Mapping[str, str], files: bool = False) -> dict[str, Any]:
    """Functions of bash and zsh that offer the words of the study that is named before; bash offers files where
    none of them fits."""
    function = f"_ratchet_{name}"
    cases = {f'*" {study} "*' if study else "*": of for study, of in words.items()}
    in_bash = " ".join(f'{case}) compgen -W "{of}" -- "$1";;' for case, of in cases.items())
    in_zsh = " ".join(f"{case}) compadd -- {of};;" for case, of in cases.items())
    bash = f'case " ${{COMP_WORDS[*]}} " in {in_bash} esac'
    zsh = f'case " $words " in {in_zsh} esac' + ("; _files" if files else "")
    preamble = {"bash": f"{function}() {{ {bash}; }}", "zsh": f"{function}() {{ {zsh}; }}"}
    return {"bash": function, "zsh": function, "preamble": preamble}
