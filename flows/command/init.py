"""`ratchet init`: writes the file of a study of one stage, to run at once and to change."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from deployments.dag.page import load_page
from flows.command.terminal import show
from storage.errors import BadInput

PIECES = '''\
"""What is asked? This line describes the study."""

from typing import Annotated

import ratchet as r


@r.stage(needs="cpu", torch=False)
def measure(run, seed: int, pieces: Annotated[int, r.knob("How many pieces of work there are.", ge=1)] = 100):
    """Each piece is kept by itself: a kill costs one."""
    import random

    for piece in run.resume(range(pieces)):
        value = random.Random(seed + piece).random()  # your work on one piece: a fold, a file, a setting
        run.row(piece=piece, value=value)
    values = [row["value"] for row in run.rows()]
    return {"mean": sum(values) / len(values)}


@r.study
def NAME():
    return measure()
'''
SCRIPT = '''\
"""SCRIPT, which goes on after a kill. This line describes the study."""

from typing import Annotated

import ratchet as r


@r.stage()
def train(run, script: Annotated[r.Script, r.knob("The script.")] = r.Script(path="SCRIPT")):
    """It runs in `run.scratch`, so files that it reads are named by their whole paths. docs/going-on.md has more."""
    run.command(
        "python",
        script.path,
OUTPUT        CHECKPOINTS  # what it goes on from, below run.scratch; else a kill costs all
        RESUME  # words that it is given then
        # leaves=["weights.pt"],  # what must be there at its end, and becomes an output
    )
    return {"ended": "exit code 0"}


@r.study
def NAME():
    return train()
'''


def init(options: argparse.Namespace) -> int:
    """Writes the file, and says what to do next. BadInput where it is there, or its name is no module's or taken."""
    file = Path(f"{options.name.removesuffix('.py')}.py")
    text, look = (_of_script(options.train_py), "look at what run.command gives it, then") if options.train_py else (
        PIECES, "next",
    )  # fmt: skip
    try:
        with file.open("x") as opened:
            opened.write(text.replace("NAME", file.stem))
    except FileExistsError:
        raise BadInput(f"{file} is there already: give another name, such as `ratchet init {file.stem}_2`") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from None
    try:
        load_page(str(file))
    except BadInput:
        file.unlink()
        raise
    return show(f"wrote {file}; {look}: ratchet run {file}")


def _of_script(script: Path) -> str:
    """The study of a script, with the words that the script's own text says that it takes."""
    try:
        source = script.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--train-py {script} cannot be read: {error}") from None

    def found(pattern: str) -> str:
        return next(iter(re.findall(f"[\"']({pattern})[\"']", source)), "")

    output, resume = found(r"--[\w-]*(?:out|save|dir)[\w-]*"), found(r"--[\w-]*(?:resume|restart)[\w-]*")
    kept = found(r"[\w.*-]*(?:last|latest|check|ckpt|state)[\w*-]*\.(?:pt|pth|ckpt|npz|safetensors)")
    lines = {
        "OUTPUT": f'        "{output}",\n        run.scratch,\n' if output else "",
        "CHECKPOINTS": f'checkpoints="{kept or "last.pt"}",',
        "RESUME": f'resume=["{resume or "--resume"}", "{{checkpoint}}"],',
        "SCRIPT": str(script),
    }
    if not (resume and kept):
        lines |= {name: f"# {lines[name]}" for name in ("CHECKPOINTS", "RESUME")}
    return re.sub("|".join(lines), lambda one: lines[one[0]], SCRIPT)
