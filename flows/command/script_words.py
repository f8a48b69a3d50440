"""What the text of a training script says of how it is called, what it writes and what it prints; nothing is run."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

SAVERS = ("save", "save_file", "savez", "dump", "save_pretrained", "save_model")
FILE = re.compile(r"[\w./*-]*\w[\w.*-]*\.\w+|[\w./-]+\*")
KEPT = re.compile(r"last|latest|check|ckpt|state|step|epoch|\*")
VALUE, PADDED = "\0", "\1"
STEP = re.compile(
    r"(?<![a-z])((?:step|epoch|it|iter|iteration|batch|round|update)s?[^\w\0\1]{0,3})([\0\1])"
    r"(?:( ?(?:/|of|out of) ?)([\0\1]))?",
    re.I,
)
"""In a printed line whose values are VALUE or, where they have a width, PADDED: steps done, and those in all."""


@dataclass(frozen=True)
class ScriptWords:
    """Empty where the text does not say it."""

    output: str
    """The option for the folder that it writes to."""
    resume: str
    """The option to go on."""
    resume_is_switch: bool
    """It takes no value: the script knows what to go on from."""
    checkpoint: str
    """A pattern of what it goes on from."""
    leaves: list[str]
    """Files that it writes at its end."""
    progress: str
    """A pattern of a line that it prints, as of `run.command`."""
    others: list[str]
    """Its other options."""
    required: tuple[str, ...] = ()
    """Words and options that it does not begin without."""
    first: tuple[str, ...] = ()
    """Words that it is given before all others."""
    from_folder: str = ""
    """A file that it runs and looks for in its working folder."""
    generators: tuple[str, ...] = ()
    """Lines of code that would keep and set the generators which its checkpoint does not hold."""

    @property
    def goes_on(self) -> bool:
        return bool(self.checkpoint and self.resume)


def read(tree: ast.Module) -> ScriptWords:
    """What the text says, and of three kinds of scripts what their library does."""
    made = {_name(call.func): call for call, _ in _calls(tree)}
    own = _by_arguments(tree)
    if "HfArgumentParser" in made:
        goes_on = "resume_from_checkpoint" in ast.unparse(tree) or "get_last_checkpoint" in made
        resume, left = "--resume_from_checkpoint" * goes_on, ["model.safetensors"] * ("save_model" in made)
        return replace(
            own, output="--output_dir", resume=resume, resume_is_switch=False, checkpoint="checkpoint-*", leaves=left,
            progress=r"(\d+)/(\d+) \[", required=tuple(_fields(tree)), generators=(),
        )  # fmt: skip
    if "LightningCLI" in made:
        return ScriptWords(
            "--trainer.default_root_dir", "--ckpt_path", False, "lightning_logs/version_*/checkpoints/*.ckpt", [],
            r"Epoch (\d+)", ["--config", "--model", "--data"], first=("fit",),
        )  # fmt: skip
    if (run := made.get("exec")) and "configurator" in (opens := ast.unparse(run)):
        known = [ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)]
        resume = "--init_from=resume" if "init_from" in known and "resume" in ast.unparse(tree) else ""
        bare = re.search(r"open\('([\w.]+)'\)", opens)
        others = [f"--{name}=" for name in known if name.islower() and name not in NO_KEYS]
        return replace(
            own, output="--out_dir=" * ("out_dir" in known), resume=resume, resume_is_switch=True, others=others,
            from_folder=bare[1] if bare else "",
        )  # fmt: skip
    return own


def _by_arguments(tree: ast.Module) -> ScriptWords:
    options = {
        node.value: any(isinstance(key.value, ast.Constant) and key.value.value in (True, "store_true") for key in keys)
        for call, _ in _calls(tree)
        for node in call.args
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"--[a-z][\w-]*", node.value)
        for keys in [[key for key in call.keywords if key.arg in ("action", "is_flag")]]
    }
    output = next(filter(_is_output, options), "")
    resume = next(filter(_is_resume, options), "")
    saved = _saved(tree)
    kept = [name for name in saved if KEPT.search(name)] or ([*saved] if len(saved) == 1 else [])
    left = [name for name, at_the_end in saved.items() if at_the_end and name not in kept and not {*"*/"} & {*name}]
    printed = [match for call, _ in _calls(tree) if (match := STEP.search(_line(call))) and "'" not in match[0]]
    shown = next((match for match in printed if match[4]), next(iter(printed), None))
    required = tuple(name for name in _required(tree) if name not in (output, resume))
    return ScriptWords(
        output, resume, options.get(resume, False), next(iter(kept), ""), left,
        _pattern(shown) if shown else "", [option for option in options if option not in (output, resume, *required)],
        required, generators=_generators(tree),
    )  # fmt: skip


def _required(tree: ast.Module) -> Iterator[str]:
    """Words of argparse that stand without an option, and options that are required."""
    for call, _ in _calls(tree):
        names = [node.value for node in call.args if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        if _name(call.func) == "add_argument" and names:
            keywords = {key.arg: getattr(key.value, "value", None) for key in call.keywords}
            word = not names[0].startswith("-") and keywords.get("nargs") not in ("?", "*")
            yield from names[-1:] if word or keywords.get("required") is True else []


def _fields(tree: ast.Module) -> Iterator[str]:
    """The options of a script's own dataclasses that have no default."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and "dataclass" in " ".join(map(ast.unparse, node.decorator_list)):
            for field in (statement for statement in node.body if isinstance(statement, ast.AnnAssign)):
                default = ast.unparse(field.value) if field.value else "field()"
                if "field(" in default and "default" not in default:
                    yield f"--{ast.unparse(field.target)}"


NO_KEYS = ("out_dir", "init_from", "config_keys")
KEEPERS = {
    "torch": ("{0}.get_rng_state()", "{0}.set_rng_state({1}.cpu())"),
    "numpy": (
        "[*map({0}.ndarray.tolist, map({0}.asarray, {0}.random.get_state()))]",
        "{0}.random.set_state(tuple({1}))",
    ),
    "random": ("{0}.getstate()", "{0}.setstate({1})"),
}
"""By library, what keeps the state of its generator in a checkpoint, also one of plain numbers, and what sets it."""


def _generators(tree: ast.Module) -> tuple[str, ...]:
    """None where the script keeps some already."""
    called = {_name(call.func) for call, _ in _calls(tree)}
    if called & {"get_rng_state", "get_rng_state_all", "getstate", "get_state", "bit_generator"}:
        return ()
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names = {alias.name: alias.asname or alias.name for alias in imports}
    keepers = {names[library]: how for library, how in KEEPERS.items() if library in names}
    kept = ", ".join(how[0].format(name) for name, how in keepers.items())
    sets = [how[1].format(name, f'state["generators"][{place}]') for place, (name, how) in enumerate(keepers.items())]
    return (f'state["generators"] = [{kept}]', *sets) if keepers else ()


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_output(option: str) -> bool:
    words = {*re.split("[-_]+", option)}
    return any(word.startswith("out") for word in words) or bool(
        words & {"save", "checkpoint", "checkpoints", "ckpt", "run", "work"} and words & {"dir", "folder", "to"}
    )


def _is_resume(option: str) -> bool:
    words = {*re.split("[-_]+", option)} - {""}
    of_file = {"load", "checkpoint", "ckpt"}
    return bool(words & {"resume", "restart", "continue"} or (words & of_file and words <= of_file | {"from", "path"}))


def _calls(node: ast.AST, within: bool = False) -> Iterator[tuple[ast.Call, bool]]:
    """Each call, and whether it stands in a loop or a condition."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, within
        yield from _calls(child, within or isinstance(child, ast.For | ast.While | ast.If))


def _saved(tree: ast.Module) -> dict[str, bool]:
    """Patterns of the files that are saved, and whether that is at the end; of a renamed file its last name."""
    means: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id != "out_dir":
            means[node.targets[0].id] = node.value
        elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            means[node.optional_vars.id] = node.context_expr

    def name(node: ast.expr) -> str:
        whole = re.sub(r"\*+", "*", _path(node, means, 5)).removeprefix("./")
        folder, _, last = whole.rpartition("/")
        return last if re.search(r"\*|\.\.|^$", folder) else whole

    saved, renamed = dict[str, bool](), dict[str, str]()
    for call, within in _calls(tree):
        function = _name(call.func)
        if function in SAVERS:
            saved |= {file: not within for file in map(name, call.args) if FILE.fullmatch(file)}
        elif function in ("replace", "rename") and isinstance(call.func, ast.Attribute) and call.args:
            renamed[name([call.func.value, *call.args][-2])] = name(call.args[-1])
    return {
        renamed.get(file, file): at_end for file, at_end in saved.items() if FILE.fullmatch(renamed.get(file, file))
    }


def _path(node: ast.expr, means: dict[str, ast.expr], deep: int) -> str:
    """An expression of a path as a pattern, `*` for what is not known."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add):
        between = "/" if isinstance(node.op, ast.Div) else ""
        return between.join(_path(part, means, deep) for part in (node.left, node.right))
    if isinstance(node, ast.Call) and node.args:
        opens = isinstance(node.func, ast.Name) and node.func.id == "open"
        return "/".join(_path(part, means, deep) for part in (node.args[:1] if opens else node.args))
    if isinstance(node, ast.Name) and node.id in means and deep:
        return _path(means[node.id], means, deep - 1)
    return "*"


def _line(call: ast.Call) -> str:
    """What a call of print or of a logger prints, with VALUE or PADDED for its values."""
    function = _name(call.func)
    return " ".join(map(_text, call.args)) if function in ("print", "info", "write") else ""


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.sub(r"%[\d.]*[dis]", PADDED, str(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _text(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return re.sub(r"\{[^{}]*\}", lambda match: PADDED if ":" in match[0] else VALUE, _text(node.func.value))
    width = ast.unparse(node.format_spec) if isinstance(node, ast.FormattedValue) and node.format_spec else ""
    return "?" if re.search("[,.]", width) else PADDED if width else VALUE


def _pattern(shown: re.Match[str]) -> str:
    done, total = (r"\s*(\d+)" if value == PADDED else r"(\d+)" for value in (shown[2], shown[4]))
    before, between = (re.escape(text or "").replace(r"\ ", " ") for text in (shown[1], shown[3]))
    return before + done + (between + total if shown[4] else "")
