"""A study's page: where it is found, and what it says when it is wrong.

A page is a function `page(study, stage)` in a module of `flows/`, or in a file of one's own anywhere. The type of its
first parameter is what a person configures.
"""

import ast
import importlib
import importlib.util
import inspect
import os
import sys
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import ValidationError

from deployments.dag import sweep
from deployments.dag.sources import FLOWS, KEPT, ROOMS, digest_of, keep, page_names, parsed, require_usable, sources
from deployments.dag.walk import Cell, Handle, Walk
from storage import attempts
from storage.errors import BadInput, NoSuchFile, did_you_mean
from tasks.stage.run import Stage
from tasks.stage.study import StudyBase
from tasks.stage.validation import explain


@dataclass(frozen=True)
class Page:
    """A study's page."""

    place: str
    """The name of its module, or the path of its file when that lies outside the repository."""
    function: Callable[..., Any]
    model: type[StudyBase]
    """Class of the configuration that a person writes."""
    over: sweep.Over = field(default_factory=dict)
    """Values of each key that a sweep varies; empty: one study."""

    @property
    def name(self) -> str:
        return Path(self.place).stem if self.is_own else self.place.rpartition(".")[2]

    @property
    def is_own(self) -> bool:
        """True where it is a file outside the repository."""
        return self.place.endswith(".py")

    @property
    def file(self) -> Path:
        return _as_staged(Path(self.place)) if self.is_own else Path(inspect.getfile(inspect.unwrap(self.function)))

    @property
    def names(self) -> dict[str, Any]:
        """What its module names."""
        return inspect.unwrap(self.function).__globals__

    @property
    def description(self) -> str:
        """The first paragraph of its module's docstring, in one line."""
        text = inspect.cleandoc(self.names.get("__doc__") or "").partition("\n\n")[0]
        return " ".join(text.split())

    @property
    def entrypoint(self) -> str:
        """Import path of its flow for Prefect. Never `path.py:function`, which loads the page's classes twice."""
        return f"{self.function.__module__}.{self.name}"

    @property
    def profiles(self) -> Path:
        """The folder of its profiles: `profiles/<name>` beside the page's file."""
        return self.file.parent / "profiles" / self.name

    def walk(self, study: Any, walk: Walk) -> list[Handle]:
        """The page's stage calls, in its order, as `walk` makes them; of a sweep all cells', then the one over them.

        Raises BadInput: what an input says of itself, or what is wrong with the page, with file and line.
        """
        cells = sweep.studies_of(study, self.over) if self.over else {}
        if self.is_own:
            _enter(self.file.parent)
        try:
            for cell, handles in cells.items():
                with walk.cell(*cell):
                    self.function(handles, walk)
            if cells:
                self._sweep(study, walk, {})
            else:
                self.function(study, walk)
        except BadInput as error:
            beside = self._beside(error) if isinstance(error, NoSuchFile) else ""
            raise (BadInput(f"{_line_of(error, self.file)}: {error}{beside}") if self.is_own else error) from None
        except ValidationError as error:
            raise BadInput(f"{_line_of(error, self.file)}: {explain(error)}") from None
        except Exception as error:
            raise BadInput(f"{_line_of(error, self.file)}: {type(error).__name__}: {error}{too_low(study)}") from error
        if not walk.handles:
            raise BadInput(f"{self.file}: the page calls no stage{too_low(study)}")
        for cell, handles in cells.items():
            self._note_origin(walk.cells[cell], handles, {})
        self._note_origin(walk.handles, study, self.over)
        if self.is_own:
            require_usable(own_files(self, walk.handles).values(), self.file.parent)
            for handle in walk.handles:
                _require_parameters(handle)
            self._note_sources(walk.handles)
        return walk.handles

    def sweep_without_stopped(self, study: Any, walk: Walk) -> Handle | None:
        """The stage over those cells of a walked sweep that can finish; None where all can, or none."""
        missing = sweep.stopped_cells(self.over, walk) if self.over else {}
        if not 0 < len(missing) < len(walk.cells):
            return None
        rest = self._sweep(study, walk, missing)
        self._note_origin([rest], study, self.over)
        self._note_sources([rest])
        return rest

    def _sweep(self, study: Any, walk: Walk, missing: dict[Cell, str]) -> Handle:
        if not all(walk.cells.values()):
            raise BadInput(f"{self.file}: the page calls no stage")
        config = sweep.configuration(study, self.over, missing)
        if metrics := self.names.get("METRICS_OF_A_SWEEP"):
            config = config.model_copy(update={"metrics": metrics})
        choose = self.names.get("sweep_stage")
        stage, config = choose(study, config) if choose else (sweep.SWEEP, config)
        known = next((handle for handle in walk.handles if (handle.stage, handle.config) == (stage, config)), None)
        if known is not None:  # a study that is followed asks again and again
            known.check_marker()
            return known
        cells = {sweep.name_of(cell): calls[-1] for cell, calls in walk.cells.items() if cell not in missing}
        return walk(stage, config, **cells)

    def _note_origin(self, handles: list[Handle], study: StudyBase, over: sweep.Over) -> None:
        origin = {"page": self.place, "study": study.model_dump(mode="json"), "over": over}
        for handle in handles:
            handle.origin = handle.origin or origin  # a stage that cells share belongs to the first

    def _note_sources(self, handles: list[Handle]) -> None:
        folder = self.file.parent
        modules = {handle.stage.work.partition(":")[0] for handle in handles if self.is_own}
        files = {module: sources([module], folder) for module in modules}
        digests = {module: digest_of(of_module, folder) for module, of_module in files.items()}
        version = attempts.own_version(folder, [self.file, *chain(*files.values())]) if modules else {}
        for handle in handles if self.is_own else ():
            digest = digests[handle.stage.work.partition(":")[0]]
            handle.own_source = {"own_page": self.place, "own_digest": digest, **version}

    def keep_sources(self, walk: Walk) -> None:
        """Copies what stages of one's own are made of to `.sources` of the root, under the digest that is recorded."""
        for handle in walk.handles:
            if digest := handle.own_source.get("own_digest"):
                files = sources([handle.stage.work.partition(":")[0]], self.file.parent)
                keep(files, self.file.parent, walk.root / KEPT / digest)

    def _beside(self, missing: NoSuchFile) -> str:
        """Where a missing file lies beside the page, what its name means."""
        name = os.path.relpath(missing.path)
        if not (self.file.parent / name).exists():
            return ""
        return (
            ": a relative path is below the folder where the study is started, and "
            f"{name} lies beside the study: start it in {self.file.parent}, or give the whole path"
        )


def too_low(study: StudyBase) -> str:
    """A hint at the numbers below 1 that a person gave a page which fails."""
    changed = [(name, value) for name, value in study if value != type(study).model_fields[name].default]
    low = [name for name, value in changed if type(value) is int and value < 1 and name not in StudyBase.model_fields]
    return "".join(f"; {name} is {getattr(study, name)}: give --set {name}=1 or more" for name in low)


def load_page(place: str) -> Page:
    """The page of a name (`robustness`), a module (`flows.robustness`) or a file (`my_study.py`).

    BadInput says what is wrong with it, with file and line.
    """
    if place.endswith(".py"):
        file = Path(place).expanduser().absolute()
        return _page_of(_import_file(_as_staged(file)), str(file))
    module = place if "." in place else f"{FLOWS}.{place}"
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        names, files = page_names(), [file.name for file in Path().glob("*.py")]
        raise BadInput(
            f"there is no study {place!r}; {did_you_mean(place, [*names, *files])}the studies are {', '.join(names)}; "
            "or give a file: my_study.py"
        )
    return _page_of(_imported(module, Path(spec.origin or module)), module)


def stages_of(page: Page) -> list[Stage]:
    """The stages that the page's module names."""
    return [value for value in page.names.values() if isinstance(value, Stage)]


def own_files(page: Page, handles: Iterable[Handle] = ()) -> dict[str, Path]:
    """Source files of a page outside the repository, whose stage calls are `handles`, by name below its folder."""
    if not page.is_own:
        return {}
    folder = page.file.parent
    works = [stage.work for stage in [*stages_of(page), *(handle.stage for handle in handles)]]
    files = sources([page.name, *(work.partition(":")[0] for work in works)], folder)
    return {file.relative_to(folder).as_posix(): file for file in files}


def imported_files(place: str) -> list[Path]:
    """The folder of a page of one's own, its file, and what it imports from the folder; nothing is imported for it."""
    file = Path(place).expanduser().absolute()
    return [file.parent, *sources([file.stem], file.parent)]


def _as_staged(file: Path) -> Path:
    """The page's file; in a job the copy of it that was staged when the job was submitted, and no other."""
    here = Path(attempts.__file__).parents[1]
    if not (here / attempts.SOURCE_FILE).is_file():
        return file
    if not (here / file.name).is_file():
        raise BadInput(f"{file} is not in {here}, the copy of the source that this job runs: start the study again")
    return here / file.name


def _page_of(module: ModuleType, place: str) -> Page:
    file = Path(inspect.getfile(module))
    function = getattr(module, "page", None)
    if not inspect.isfunction(function):
        raise BadInput(f"{file}: defines no function `page(study, stage)`")
    line = f"{file}:{inspect.unwrap(function).__code__.co_firstlineno}"
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise BadInput(f"{line}: {error}") from None
    parameters = list(inspect.signature(function).parameters)
    model = hints.get(parameters[0]) if parameters else None
    if len(parameters) != 2 or not (isinstance(model, type) and issubclass(model, StudyBase)):
        raise BadInput(
            f"{line}: a page is `def page(study: Study, stage: Dispatcher)`, where Study is a class made from "
            "tasks.stage.study.StudyBase"
        )
    page = Page(place, function, model)
    if "NUMBERS_OF_A_SWEEP" in page.names:
        raise BadInput(
            f"{file}: NUMBERS_OF_A_SWEEP says of no number what is better, and is not read any more: give "
            'METRICS_OF_A_SWEEP = [ratchet.Swept(title="loss", numbers="arms.{arm}.loss", higher=False)] in its place'
        )
    for stage in stages_of(page):
        _function_of(stage, file)
    require_usable(own_files(page).values(), page.file.parent)
    return page


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        hint = did_you_mean(file.name, [other.name for other in file.parent.glob("*.py")])
        raise BadInput(f"there is no file {file}" + (f"; {hint.strip()}" if hint else ""))
    if not file.stem.isidentifier():
        raise BadInput(f"{file}: its name is no module name: use letters, digits and _, such as my_study.py")
    _enter(file.parent)
    require_usable(sources([file.stem], file.parent), file.parent)
    return _imported(file.stem, file)


_AWAY: dict[Path, dict[str, ModuleType]] = {}
"""Modules of the folders that own pages were imported from, but for the one that was entered last."""
_ENTERED: list[Path] = []
"""Folder that was entered last."""


def _enter(folder: Path) -> None:
    """Makes `folder` the one from which own modules are imported.

    `advance` walks the studies of many folders in one process, and two may have files of one name.
    """
    for other in [entered for entered in _ENTERED if entered != folder]:
        theirs = {name: module for name, module in sys.modules.items() if _lies_in(other, name, module)}
        _AWAY[other] = _AWAY.get(other, {}) | theirs
        for name in theirs:
            del sys.modules[name]
    _ENTERED[:] = [folder]
    sys.modules.update(_AWAY.pop(folder, {}))
    sys.path[:] = [place for place in sys.path if place not in {*map(str, _AWAY)}]
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: nothing there may take the place of an installed module
        importlib.invalidate_caches()


def _lies_in(folder: Path, name: str, module: ModuleType) -> bool:
    """True where a module was imported from this folder; an environment below it is another one."""
    file, top = vars(module).get("__file__") or "", name.partition(".")[0]
    return top not in ROOMS and file.startswith((f"{folder / top}.py", f"{folder / top}/"))


def _imported(module: str, file: Path) -> ModuleType:
    try:
        return importlib.import_module(module)
    except BadInput as error:
        named = str(error).startswith(str(file))  # by `study_flow(page)` in the file's last line
        raise (error if named else BadInput(f"{_line_of(error, file)}: {error}")) from None
    except ValidationError as error:
        raise BadInput(f"{_line_of(error, file)}: {explain(error)}") from None
    except Exception as error:
        raise BadInput(f"{_line_of(error, file)}: {type(error).__name__}: {error}") from error


def _line_of(error: BaseException, file: Path) -> str:
    """The innermost line of `file`, else of its folder, that the error came through."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append((Path(trace.tb_frame.f_code.co_filename), trace.tb_lineno))
        trace = trace.tb_next
    own = [line for line in lines if line[0] == file] or [line for line in lines if file.parent in line[0].parents]
    return "{}:{}".format(*own[-1]) if own else str(file)


def _require_parameters(handle: Handle) -> None:
    """BadInput when the stage's function does not take what the page gives it."""
    if hasattr(handle.stage, "written"):  # a function whose parameters its call has seen
        return
    file, function = _function_of(handle.stage, Path())
    taken = function.args
    names = [argument.arg for argument in [*taken.posonlyargs, *taken.args]]
    missing = names[2 : len(names) - len(taken.defaults)] + [
        argument.arg for argument, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if default is None
    ]
    unknown = [] if taken.kwarg else sorted({*handle.inputs} - {*names[2:], *(each.arg for each in taken.kwonlyargs)})
    lacking = [name for name in missing if name not in handle.inputs]
    if len(names) < 2 or unknown or lacking:
        raise BadInput(
            f"{file}:{function.lineno}: {function.name}({', '.join(names)}): the page gives the stage {handle.label} "
            f"{', '.join(['run', 'config', *handle.inputs])}: name the parameters so"
        )


def _function_of(stage: Stage, page: Path) -> tuple[str, ast.FunctionDef]:
    """The file and the definition of a stage's function; it is read and not imported, since that takes torch."""
    module, _, name = stage.work.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise BadInput(f"{page}: stage {stage.name}: work {stage.work!r}: there is no module {module!r}")
    try:
        with tokenize.open(spec.origin) as file:
            tree = parsed(file.read(), spec.origin)
    except SyntaxError as error:
        raise BadInput(f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        raise BadInput(
            f"{page}: stage {stage.name}: work {stage.work!r}: {spec.origin} defines no function {name!r}; "
            f"it has {', '.join(sorted(functions)) or 'none'}"
        )
    return spec.origin, functions[name]
