"""`ratchet init`: writes the file of a study of one stage, to run at once and to change."""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

from deployments.dag.page import load_page
from flows.command import script_words
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
        script.path,WORDS
    )
    return {"ended": "exit code 0"}


@r.study
def NAME():
    return train()
'''
STEPS = r"step (\d+) of (\d+)"


def init(options: argparse.Namespace) -> int:
    """Writes the file, and says what to do next. BadInput where it is there, or its name is no module's or taken."""
    file = Path(f"{options.name.removesuffix('.py')}.py")
    text, look = (_of_script(options.train_py), "look at what run.command gives it, then") if options.train_py else (
        PIECES, "next",
    )  # fmt: skip
    try:
        with file.open("x") as opened:
            opened.write(text.replace("def NAME()", f"def {file.stem}()"))
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
    """The study of a script, with the words, files and lines that the script's own text says that it has."""
    try:
        tree = ast.parse(script.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"--train-py {script} cannot be read: {error}") from None
    except SyntaxError as error:
        raise BadInput(f"--train-py {script}:{error.lineno}: SyntaxError: {error.msg}") from None
    found = script_words.read(tree)
    goes_on = found.checkpoint and found.resume
    resume = [found.resume or "--resume", *([] if found.resume_is_switch else ["{checkpoint}"])]
    quote = "'" if '"' in found.progress else '"'
    lines = [
        (goes_on, f'checkpoints="{found.checkpoint or "last.pt"}",', "what it goes on from, below run.scratch"),
        (goes_on, f"resume={json.dumps(resume)},", "words that it is given then"),
        (found.leaves, f"leaves={json.dumps(found.leaves or ['weights.pt'])},", "must be there at its end, an output"),
        (found.progress, f"progress=r{quote}{found.progress or STEPS}{quote},", "it prints: steps done, and in all"),
    ]
    given = [f"{line}  # {what}" for there, line, what in lines if there]
    missing = [f"# {line}  # {what}" for there, line, what in lines if not there]
    if missing:
        given += [f"# to fill in, as {script.name} does not tell it; without checkpoints a kill costs all:", *missing]
    words = [f'"{found.output}",', "run.scratch,"] if found.output else []
    words += [f"# it takes {', '.join(found.others)} too"] if found.others else []
    parts = {"SCRIPT": str(script), "WORDS": "".join(f"\n        {line}" for line in [*words, *given])}
    return re.sub("|".join(parts), lambda one: parts[one[0]], SCRIPT)
