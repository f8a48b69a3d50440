"""Every key of a study's configuration, made from the classes that check it: for a terminal, and for a shell that
completes them."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import flows
from deployments.dag.page import Page, load_page
from deployments.dag.sources import page_names
from flows.command.options import ratchet_parser
from flows.command.terminal import show, show_json
from storage.errors import BadInput, did_you_mean
from tasks.stage.keys import keys_of

RUNS = {
    "bash": """_ratchet_runs() {
  local root=runs at name
  [[ " ${COMP_WORDS[*]} " =~ " --root "([^ ]+) ]] && root=${BASH_REMATCH[1]}
  cd -- "$root" 2>/dev/null && for at in */latest */*/*/stage.json; do
    at=${at%/stage.json}
    for name in "$at" "${at##*/}"; do [[ -e $at && $name == "$1"* && $name != latest ]] && echo "$name"; done
  done
}""",
    "zsh": """_ratchet_runs() {
  local root=runs; local -a at
  [[ " $words " =~ ' --root ([^ ]+)' ]] && root=$match[1]
  at=($root/*/*/*/stage.json(N:h)); compadd -- ${at#$root/} ${at:t}; _files
}""",
}
"""What offers runs below the root that is named, by folder and by fingerprint. Never `compgen -W`, which would run what
a stranger's folder is called."""
PROFILES = Path(flows.__path__[0], "profiles")


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


def print_schema(options: argparse.Namespace) -> int:
    """`ratchet schema`: prints what an editor checks a profile of a study by."""
    return show_json(profile_schema(load_page(options.study)))


def profile_schema(page: Page) -> dict[str, Any]:
    """The JSON schema of a profile: its file names it, and a group with a default may have part of its keys."""
    schema = page.model.model_json_schema()
    groups = [schema, *schema.get("$defs", {}).values()]
    references = {key["$ref"].rpartition("/")[2] for group in groups for key in group.get("properties", {}).values()
             if "default" in key and "$ref" in key}  # fmt: skip
    for name in references:
        schema["$defs"][name].pop("required", None)
    schema["required"] = [name for name in schema.get("required", []) if name != "name"]
    return schema | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Profile of {page.name}"}


def print_completion(options: argparse.Namespace) -> int:
    """Prints the completion of `ratchet` for a shell."""
    import shtab

    names = page_names()
    profiles = {name: " ".join(sorted(file.stem for file in PROFILES.glob(f"{name}/*.yaml"))) for name in names}
    keys = {name: f"$(ratchet run {name} --keys | grep -v '[ :]')" for name in names}
    runs = {"bash": "_ratchet_runs", "zsh": "_ratchet_runs", "preamble": RUNS}
    complete = {
        "run": runs,
        "a": runs,
        "b": runs,
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
    cases = {f'*" {study} "*' if study else "*": completions for study, completions in words.items()}
    in_bash = " ".join(f'{case}) compgen -W "{completions}" -- "$1";;' for case, completions in cases.items())
    in_zsh = " ".join(f"{case}) compadd -- {completions};;" for case, completions in cases.items())
    bash = f'case " ${{COMP_WORDS[*]}} " in {in_bash} esac'
    zsh = f'case " $words " in {in_zsh} esac' + ("; _files" if files else "")
    preamble = {"bash": f"{function}() {{ {bash}; }}", "zsh": f"{function}() {{ {zsh}; }}"}
    return {"bash": function, "zsh": function, "preamble": preamble}
