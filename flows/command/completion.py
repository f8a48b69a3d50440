"""`ratchet completion`: what makes a shell complete commands, studies, profiles and keys."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shtab

import flows
from deployments.dag.sources import page_names
from flows.command.options import ratchet_parser
from flows.command.terminal import show

PROFILES = Path(flows.__path__[0], "profiles")


def print_completion(options: argparse.Namespace) -> int:
    """Prints the completion of `ratchet` for a shell."""
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
