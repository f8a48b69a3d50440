"""A study written as functions: a stage is a function whose parameters are its configuration, the study calls them.

    @stage(needs="cpu", torch=False)
    def throw(run, seed: int, throws: Annotated[int, knob("How often the die is thrown.", ge=1)] = 6000): ...

    @study
    def dice():
        throw()

It is a thin layer: a stage becomes a `Stage` with a configuration, a study a page, as if they were written by hand.
By hand, `THROW = Stage("dice-throw", ThrowConfig, "dice_work:throw")` and `def dice(study: Study)` are called alike.
"""

import functools
import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from deployments.dag.page import too_low
from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from storage.errors import BadInput, did_you_mean
from tasks.findings.configuration import ArmsConfig, role_of
from tasks.stage import run as stages
from tasks.stage.configuration import contents, names_files, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.run import Needs, StageRun
from tasks.stage.study import StageConfiguration, StudyBase, nested

_WALKED: ContextVar[tuple[StudyBase, Dispatcher]] = ContextVar("walked")
"""The study whose page is walked now, and what its stage calls are given to."""


@dataclass(frozen=True)
class Knob:
    """What a parameter's annotation says of it beside its type."""

    description: str
    limits: dict[str, Any]


def knob(description: str, **limits: Any) -> Knob:
    """For `Annotated[int, knob("Pictures of each digit.", ge=10)]`: what people read, and limits as in pydantic."""
    return Knob(description, limits)


@dataclass(frozen=True)
class Stage(stages.Stage):
    """A stage that is called in a study: `TRAIN({"none": {0: base}}, data=data, seed=3)`.

    What is named like a field of its configuration is one, and other fields are the study's. All else are inputs by
    their names, see `roles`; a dictionary of inputs comes before the names.
    """

    def __call__(self, inputs: Mapping[str, Any] = MappingProxyType({}), /, **named: Any) -> Any:
        values = {name: named.pop(name) for name in self.config.model_fields if name in named}
        study, dispatch = _walked(self.name)
        return dispatch(self, self.config.of(study, **values), **roles("", named), **roles("", {**inputs}))


@dataclass(frozen=True)
class FunctionStage(Stage):
    """A stage that is a function; called in a study it is a stage call, called by an attempt it does the work."""

    written: Callable[..., Any] = field(kw_only=True)
    reads: tuple[str, ...] = field(kw_only=True)
    """Parameters for finished stages: those without an annotation."""

    def __call__(self, *positional: Any, **named: Any) -> Any:
        if positional and isinstance(positional[0], StageRun):
            return self._work(*positional, **named)
        study, dispatch = _walked(f"{self.__name__}()")
        for name in named.keys() - (known := _parameters(self.written)).keys():
            raise BadInput(
                f"the stage {self.__name__} has no parameter {name!r}; {did_you_mean(name, known)}it has "
                f"{', '.join(known)}"
            )
        values = dict([*inspect.signature(self.written).bind_partial(None, *positional, **named).arguments.items()][1:])
        read = {name: values.pop(name, known[name].default) for name in self.reads}
        read = {name: stage for name, stage in read.items() if stage is not None or known[name].default is not None}
        inputs = {name: roles(name, stage) for name, stage in read.items()}
        if missing := [name for name, stage in read.items() if stage is inspect.Parameter.empty or not inputs[name]]:
            raise BadInput(f"the stage {self.__name__} is given no stage call as {missing[0]}{too_low(study)}")
        by_role = {role: stage for several in inputs.values() for role, stage in several.items()}
        again = self._read(by_role)
        for name, stage in read.items():
            if again.get(name) != ([*stage] if isinstance(stage, tuple) else stage):
                raise BadInput(
                    f"the stage {self.__name__} is given {', '.join(inputs[name])} of {name}, which read like "
                    "something else, another parameter or a list: rename a key, or write a number as a number"
                )
        cell = ", ".join(f"{name} {value}" for name, value in values.items() if isinstance(value, str | int | float))
        return dispatch(self, self.config.of(study, **{"cell": cell} | values), **by_role)

    def _work(self, run: StageRun, config: StageConfiguration, **inputs: Any) -> Any:
        values = {name: getattr(config, name) for name in _parameters(self.written) if name not in self.reads}
        return self.written(run, **values, **self._read(inputs))

    def _read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What each parameter is given; a role that reads like two of them is the longer one's."""
        values: dict[str, dict[str, Any]] = {}
        for role, value in inputs.items():
            begins = (name for name in self.reads if f"{role}_".startswith((f"{name}_", f"{name}-")))
            name = max(begins, key=len)
            values.setdefault(name, {})[role.removeprefix(name)] = value
        return {name: nested(several) for name, several in values.items()}

    @property
    def __code__(self) -> Any:
        return self.written.__code__

    @property
    def __name__(self) -> str:
        return self.written.__name__


def stage(
    *, needs: Needs = "training", version: int = 1, torch: bool = True, packages: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], FunctionStage]:
    """Makes a function a stage. Its first parameter is the run; of the others those without an annotation are finished
    stages (or a list or dictionary of such), those with one its configuration.

    A parameter with a default is a key of the study too, one without is given in each call, but for `seed`, which the
    study has. Without `torch` the stage uses none; `packages` are those on whose version its bytes depend.
    """

    def make(function: Callable[..., Any]) -> FunctionStage:
        hints = get_type_hints(function, include_extras=True)
        parameters = _parameters(function)
        for name in parameters.keys() - hints.keys():
            if (default := parameters[name].default) not in (inspect.Parameter.empty, None):
                raise BadInput(
                    f"{function.__name__}: {name}={default!r} has no type, and a parameter without one is a finished "
                    f"stage: write {name}: {type(default).__name__} = {default!r}"
                )
        fields = {
            name: _field(function, parameter, hints[name]) for name, parameter in parameters.items() if name in hints
        }
        name = f"{function.__module__.rpartition('.')[2]}-{function.__name__}".replace("_", "-")
        numerics = Numerics(StageConfiguration.numerics.fields if torch else (), packages, torch)
        config = _class(f"{function.__name__}_configuration", StageConfiguration, function, fields, numerics=numerics)
        reads = tuple(name for name in parameters if name not in hints)
        work = f"{function.__module__}:{function.__name__}"
        return FunctionStage(name, config, work, version, needs, written=function, reads=reads)

    return make


def study(function: Callable[..., Any] | None = None, *, small: Mapping[str, Any] | None = None) -> Any:
    """Makes a function, called like its file, a study: it calls the stages, and returns the one whose answer is shown.

    The keys of the study are its own parameters and those of the file's stages that have a default; `seed`, `execution`
    and `name` come with every study. `small` are the keys with which `ratchet rehearse` takes minutes. A class of keys
    as its only parameter is the whole study.
    """
    if function is None:
        return functools.partial(study, small=small)
    spec = sys.modules[function.__module__].__spec__  # also of what `python -m` runs
    if function.__name__ != (stem := (spec.name if spec else function.__module__).rpartition(".")[2]):
        raise BadInput(f"the function with @study is called {function.__name__}(): call it {stem}(), like its file")
    hints, own = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    module, whole = vars(sys.modules[function.__module__]), [hints.get(name) for name in own]
    model = whole[0] if len(whole) == 1 and inspect.isclass(whole[0]) and issubclass(whole[0], StudyBase) else None
    model = model or _class("Study", StudyBase, function, _keys(function, module))

    @functools.wraps(function)
    def page(study: StudyBase, stage: Dispatcher) -> Any:
        token = _WALKED.set((study, stage))
        try:
            return function(study) if model in whole else function(**{name: getattr(study, name) for name in own})
        finally:
            _WALKED.reset(token)

    page.__annotations__ = {"study": model, "stage": Dispatcher}
    page.__signature__ = inspect.signature(lambda study, stage: None)  # type: ignore[attr-defined]
    module |= {"page": page, "small": small or {}}
    return study_flow(page)


def _walked(what: str) -> tuple[StudyBase, Dispatcher]:
    try:
        return _WALKED.get()
    except LookupError:
        raise BadInput(f"{what} is a stage: call it in a function with @study") from None


def _keys(function: Callable[..., Any], module: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a study: its parameters, and those with a default of the stages in its file."""
    hints, own = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    fields = {name: _field(function, parameter, hints.get(name, Any)) for name, parameter in own.items()}
    of: dict[str, str] = dict.fromkeys(fields, function.__name__)
    for each in [value for value in module.values() if isinstance(value, FunctionStage)]:
        hinted = get_type_hints(each.written, include_extras=True)
        for name, parameter in _parameters(each.written).items():
            if name not in hinted or parameter.default is inspect.Parameter.empty or name in StudyBase.model_fields:
                continue
            key = _field(each.written, parameter, hinted[name])
            if name in fields and (fields[name][0], fields[name][1].default) != (key[0], key[1].default):
                raise BadInput(
                    f"{each.written.__name__} and {of[name]} both have {name}, with other types or defaults, and the "
                    "study has one key of that name: rename one, or give one no default and its value in the call"
                )
            fields.setdefault(name, key)
            of.setdefault(name, each.written.__name__)
    return fields


REPORT = stages.Stage("report", ArmsConfig, "tasks.findings.side_by_side:report", version=6, needs="cpu")


def report(
    arms: Mapping[str, Handle | Sequence[Handle]],
    *,
    metric: str,
    compare: Sequence[str] = (),
    higher_is_better: bool | None = None,
    question: str = "",
) -> Handle:
    """A stage, called in a study, that lays arms side by side: each is a stage call or a list of such (folds, seeds).

    `metric` names the number in their results, `compare` an arm and its reference (none: all with the first arm), whose
    difference is paired by what varies within an arm. Higher is better where the arms' trainings say so; `None` and no
    such training: nothing is called better. BadInput for arms that do not pair.
    """
    study, dispatch = _walked("report()")
    several: dict[str, list[Any]] = {
        arm: [*runs] if isinstance(runs, list | tuple) else [runs] for arm, runs in arms.items()
    }
    if strange := [
        arm for arm, runs in several.items() if not runs or not all(isinstance(stage, Handle) for stage in runs)
    ]:
        raise BadInput(f"report: the arm {strange[0]!r} is no stage call, and no list of one or more{too_low(study)}")
    if unknown := [name for name in compare if name not in several]:
        raise BadInput(f"report: compare names {unknown[0]!r}; the arms are {', '.join(several)}")
    if len(compare) not in (0, 2) or len(several) < 2 or len({*compare}) != len(compare):
        raise BadInput("report: two or more arms are compared, and compare names two of them: an arm and its reference")
    varied = {arm: _varied(runs) for arm, runs in several.items()}
    names = {name: None for differ in varied.values() for name in differ}
    by = " and ".join(names) or "seed"
    alone = "all" if names else str(study.seed)  # an arm of one call, which is of no fold where others have some
    called = {
        arm: [", ".join(str(differ[name][number]) for name in differ) or alone for number in range(len(runs))]
        for (arm, runs), differ in zip(several.items(), varied.values(), strict=True)
    }
    if alike := [arm for arm, values in called.items() if len({*values}) < len(values)]:
        raise BadInput(
            f"report: two calls of the arm {alike[0]!r} have the same {by} ({', '.join(called[alike[0]])}): give what "
            "tells them apart a parameter, such as seed or fold"
        )
    judged = compare or [*several]
    if other := [arm for arm in judged if {*called[arm]} != {*called[judged[0]]}]:
        raise BadInput(
            f"report: the arms do not pair: {judged[0]} has {by} {', '.join(called[judged[0]])}, and {other[0]} "
            f"{', '.join(called[other[0]])}: give each the same, or name two that pair with compare=(..., ...)"
        )
    config = ArmsConfig(
        metric=metric, arms=called, varied=by, compare=[*compare], higher_is_better=higher_is_better, question=question
    )
    inputs = {
        role_of(arm, by, value): stage
        for arm, runs in several.items()
        for value, stage in zip(called[arm], runs, strict=True)
    }
    return dispatch(REPORT, config, **inputs)


def _varied(handles: Sequence[Handle]) -> dict[str, list[Any]]:
    """The scientific fields in which stage calls of an arm differ, with the value of each.

    Those of what they read count where their own do not tell all apart.
    """
    own = _differing([handle.config.scientific() for handle in handles])
    told_apart = len({str(values) for values in zip(*own.values(), strict=True)}) == len(handles)
    return own if told_apart or len(handles) == 1 else _differing([_fields_of_all(handle) for handle in handles])


def _differing(fields: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values = {name: [arm.get(name) for arm in fields] for arm in fields for name in arm}
    return {name: several for name, several in values.items() if any(value != several[0] for value in several)}


def _fields_of_all(handle: Handle) -> dict[str, Any]:
    """The scientific fields of a stage call and of all that it reads; of one name its own, or the nearest."""
    read = [_fields_of_all(parent) for parent in handle.inputs.values()]
    return dict(ChainMap(handle.config.scientific(), *read))


def _class(name: str, base: type[Any], function: Callable[..., Any], fields: dict[str, Any], **more: Any) -> type[Any]:
    """A configuration with these fields, which the function's module names, so that a run directory can be reopened."""
    annotations = {key: kind for key, (kind, _) in fields.items()} | {key: ClassVar[Any] for key in more}
    space = {key: value for key, (_, value) in fields.items()} | more
    made = type(name, (base,), space | {
        "__annotations__": annotations, "__module__": function.__module__, "__doc__": inspect.getdoc(function) or name,
    })  # fmt: skip
    vars(sys.modules[function.__module__])[name] = made
    return made


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """All but the first, which is the run."""
    return dict([*inspect.signature(function).parameters.items()][1:])


def _field(function: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> tuple[Any, Any]:
    """The type and the declaration of a parameter."""
    kind, *notes = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    knob_ = next(
        (note for note in notes if isinstance(note, Knob)), Knob(f"{parameter.name} of {function.__name__}.", {})
    )
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    for note in notes:  # such as the check of a LocalPath
        kind = kind if isinstance(note, Knob) else Annotated[kind, note]
    declared = contents if names_files(kind) else scientific
    return kind, declared(default, description=knob_.description, **knob_.limits)


def roles(name: str, inputs: Any) -> dict[str, Any]:
    """The inputs that a stage is given as `name`: a stage call, or those of dictionaries and lists, by key and number:
    `name_key`, `name-0`, in a list `name_0`."""
    if not isinstance(inputs, list | tuple | dict):
        return {name: inputs}
    items = inputs.items() if isinstance(inputs, dict) else ((str(number), part) for number, part in enumerate(inputs))
    named = (
        (f"{name}-{key}" if isinstance(key, int) else f"{name}_{key}" if name else key, part) for key, part in items
    )
    return {role: part for key, several in named for role, part in roles(key, several).items()}
