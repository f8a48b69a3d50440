"""`ratchet init`: writes the file of a study of one stage, to run at once and to change."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from deployments.dag.page import load_page
from flows.command import script_words
from flows.command.script_words import ScriptWords
from flows.command.terminal import show
from storage.errors import BadInput
from storage.inside import Name
from storage.reading import read_bytes

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
"""ABOUT, which goes on after a kill. This line describes the study."""

from typing import Annotated

import ratchet as r


@r.stage()
def train(run, script: Annotated[r.Script, r.knob("The script.")] = r.Script(path=SCRIPTREADS)):
    """It runs in `run.scratch`, so files that it reads are named by their whole paths. docs/going-on.md has more."""
LOST    return run.command(
        FOLDER"python",
        script.path,WORDS
    )


@r.study
def NAME():
    return train()
'''
STEPS = r"step (\d+) of (\d+)"
NAME = "my_study"
LOST = "Its checkpoint holds no generators: what it draws after a kill is other. With its state these lines keep them:"


def init(options: argparse.Namespace) -> int:
    """Writes the file, and says what to do next. BadInput where it is there, or its name is no module's or taken."""
    file = Path(f"{(options.name or NAME).removesuffix('.py')}.py")
    if options.train_py and not options.name and file.exists():  # a second script has a name of its own
        words = re.findall(r"\w+", options.train_py.stem.lower())
        file = Path(f"{'_'.join([*words, 'study'])}.py")
    text, look = (_of_script(options.train_py), "look at what run.command gives it, then") if options.train_py else (
        PIECES, "next",
    )  # fmt: skip
    try:
        with file.open("x", encoding="utf-8") as opened:
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
    lost = f"its checkpoint holds no generators: {file} has the lines that would keep them; " * (LOST in text)
    return show(f"wrote {file}; {lost}{look}: ratchet run {file}")


def _of_script(script: Path) -> str:
    """The study of a script, with the words, files and lines that the script's own text says that it has."""
    try:
        tree = ast.parse(read_bytes(script))  # in the encoding that it says
    except SyntaxError as error:
        raise BadInput(f"--train-py {script}:{error.lineno or 1}: SyntaxError: {error.msg}") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"--train-py {script} cannot be read: {error}") from None
    words = script_words.read(tree)
    beside = [str(script.with_name(words.from_folder))] if words.from_folder else []
    lost = [LOST, *(f"    {line}" for line in words.generators)] if words.goes_on and words.generators else []
    parts = {
        "SCRIPT": _code(str(script)),
        "READS": f", reads={_list(beside)}" if beside else "",
        "FOLDER": '"env", "-C", Path(script.path).parent, ' if beside else "",
        "LOST": "".join(f"    # {line}\n" for line in lost),
        "ABOUT": _code(str(script))[1:-1],
        "WORDS": "".join(f"\n        {line}" for line in [*_words(words), *_arguments(words, script)]),
    }
    text = re.sub("|".join(parts), lambda match: parts[match[0]], SCRIPT)
    return text.replace("from typing", "from pathlib import Path\nfrom typing", 1) if beside else text


def _words(words: ScriptWords) -> Iterator[str]:
    """What the script is given each time."""
    yield from (f"{_code(word)}," for word in words.first)
    if words.output.endswith("="):
        yield f'f"{words.output}{{run.scratch}}",'
    elif words.output:
        yield from (f"{_code(words.output)},", "run.scratch,")
    if words.required:
        yield f"# it does not begin without: {', '.join(_code(option)[1:-1] for option in words.required)}"
    if words.others:
        yield f"# it takes {', '.join(words.others)} too"


def _arguments(words: ScriptWords, script: Path) -> list[str]:
    """What `run.command` is told of the script, and what it would have to be told."""
    resume = [words.resume or "--resume", *([] if words.resume_is_switch else ["{checkpoint}"])]
    lines = [
        (
            words.goes_on,
            f"checkpoints={_code(words.checkpoint or 'last.pt')}",
            "what it goes on from, below run.scratch",
        ),
        (words.goes_on, f"resume={_list(resume)}", "words that it is given then"),
        (words.leaves, f"leaves={_list(words.leaves or ['weights.pt'])}", "must be there at its end, an output"),
        (words.progress, f"progress={_raw(words.progress or STEPS)}", "it prints: steps done, and in all"),
    ]
    lines_ = [f"{line},  # {what}" for there, line, what in lines if there]
    if missing := [f"# {line},  # {what}" for there, line, what in lines if not there]:
        name = _code(script.name)[1:-1]
        lines_ += [f"# to fill in, as {name} does not tell it; without checkpoints a kill costs all:", *missing]
    return lines_


def _list(words: list[str]) -> str:
    return f"[{', '.join(map(_code, words))}]"


def _code(text: str) -> str:
    return Name(text).code


def _raw(pattern: str) -> str:
    """A pattern as a person writes it, where that can be."""
    quote = "'" if '"' in pattern else '"'
    plain = pattern.isprintable() and quote not in pattern and not pattern.endswith("\\")
    return f"r{quote}{pattern}{quote}" if plain else _code(pattern)
