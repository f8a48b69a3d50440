"""Whether a line that the docs show could be typed: each program's own parser is asked, and nothing is run."""

import ast
import importlib.util
import re
import shlex

from cyclopts.exceptions import CycloptsError, MissingArgumentError
from prefect.cli._app import _app as prefect

from deployments.dag.page import load_page
from flows import command
from flows.command import settings
from storage import __main__ as storage
from tests.conftest import REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text()
PROGRAMS = ("ratchet", "make", "prefect", "python", "python3.11")
OTHERS = {
    *("export", "set", ".", "mkdir", "cp", "ssh", "exec"),
    *("nvidia-smi", "apptainer", "tests/slurm/cluster.sh", "tensorboard", "wandb", "pipx"),
}
"""Programs that are not ours: that bash can read the line is all that is asked."""
YOURS = {"my-study.yaml": "quick", "digits.py": "", "dice.py": "", "mine.py": "", "my_study.py": "", "folds.py": ""}
"""Files that the reader is to make, and the profile to read in their place; empty: another test runs these commands."""


def problem(line: str, whole: bool = True) -> str:
    """What is wrong with a line of bash; empty when it can be typed. `whole`: its arguments are all there."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words:
        return ""
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    for cut in (">", "||"):
        arguments = arguments[: arguments.index(cut)] if cut in arguments else arguments
    if program not in PROGRAMS:
        return "" if program in OTHERS else f"{program} is no program that is known here"
    known = {"ratchet": _ratchet, "make": _make, "prefect": _prefect}.get(program, _python)
    try:
        return known(arguments, whole)
    except (SystemExit, ValueError) as error:
        shown = getattr(error, "code", None) == 0  # of --help
        return "" if shown else f"{program} refuses {shlex.join(arguments)}"


def _ratchet(arguments: list[str], whole: bool) -> str:
    if not whole and arguments in [[name] for name in names_of_commands()]:
        return ""
    options = command.ratchet_parser()[0].parse_args(arguments)
    if not hasattr(options, "changes"):
        return ""
    profile = YOURS.get(options.profile, options.profile)
    if options.study not in YOURS:
        study = settings.read_study(load_page(options.study), profile, options.changes, options.seed)
        assert study.name
        over = settings.read_over(getattr(options, "over", []))
        for key, values in over.items():
            for value in values:
                settings.read_study(load_page(options.study), profile, [f"{key}={value}"], None)
    return ""


def names_of_commands() -> list[str]:
    """Of `ratchet`."""
    return list(command.ratchet_parser()[1])


def options_of_commands() -> set[str]:
    """Every option of `ratchet` and of its commands."""
    ratchet, commands = command.ratchet_parser()
    return {
        option
        for parser in (ratchet, *commands.values())
        for action in parser._actions
        for option in action.option_strings
    }


def _make(arguments: list[str], whole: bool) -> str:
    for word in arguments:
        name, is_, _ = word.partition("=")
        there = re.search(rf"^{name} *\?=" if is_ else rf"^{re.escape(word)}:", MAKEFILE, re.MULTILINE)
        if not there:
            return f"the Makefile has no {word}"
    return ""


def _prefect(arguments: list[str], whole: bool) -> str:
    try:
        prefect.parse_args(arguments, print_error=False, exit_on_error=False)
    except MissingArgumentError as error:
        return f"{error}" if whole else ""
    except CycloptsError as error:
        return f"{error}"
    return ""


def _python(arguments: list[str], whole: bool) -> str:
    if arguments[0] == "-c":
        return "" if ast.parse(arguments[1]) and not arguments[2:] else "words stand behind the code"
    if arguments[0] != "-m":
        return "a call of Python that no parser can be asked of"
    module, rest = arguments[1], arguments[2:]
    if module in ("pip", "venv"):
        return ""
    if module == "flows.robustness":
        command.ratchet_parser()[0].parse_args(["run", module, *rest])
    elif module == "storage":
        storage.main(["--help"] if not rest else [rest[0], "--help"])
    return "" if importlib.util.find_spec(module) else f"there is no module {module}"
