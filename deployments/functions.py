"""A study written as functions: a stage is a function whose parameters are its configuration, the study calls them.

    @stage(needs="cpu", torch=False)
    def throw(run, seed: int, throws: Annotated[int, knob("How often the die is thrown.", ge=1)] = 6000): ...

    @study
    def dice():
        throw()

It is a thin layer: a stage becomes a `Stage` with a configuration, a study a page, as if they were written by hand.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from deployments.dag.page import too_low
from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from storage.errors import BadInput, did_you_mean
from tasks.findings.configuration import ArmsConfig, role_of
from tasks.stage.configuration import contents, names_files, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.run import Needs, Stage, StageRun
from tasks.stage.study import StageConfiguration, StudyBase

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
class FunctionStage(Stage):
    """A stage that is a function; called in a study it is a stage call, called by an attempt it does the work."""

    written: Callable[..., Any] = field(kw_only=True)
    reads: tuple[str, ...] = field(kw_only=True)
    """Parameters for finished stages: those without an annotation."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        if given and isinstance(given[0], StageRun):
            return self._work(*given, **named)
        try:
            study, dispatch = _WALKED.get()
        except LookupError:
            raise BadInput(f"{self.written.__name__}() is a stage: call it in a function with @study") from None
        for name in named.keys() - (known := _parameters(self.written)).keys():
            raise BadInput(
                f"the stage {self.written.__name__} has no parameter {name!r}; {did_you_mean(name, known)}it has "
                f"{', '.join(known)}"
            )
        return self._dispatched(study, dispatch, inspect.signature(self.written).bind_partial(None, *given, **named))

    def _dispatched(self, study: StudyBase, dispatch: Dispatcher, call: inspect.BoundArguments) -> Handle:
        given = dict([*call.arguments.items()][1:])
        inputs: dict[str, Handle] = {}
        for name in self.reads:
            default = _parameters(self.written)[name].default
            if (read := given.pop(name, default)) is None and default is None:
                continue
            if not (roles := _roles(name, read)) or read is inspect.Parameter.empty:
                raise BadInput(f"the stage {self.written.__name__} is given no stage call as {name}{too_low(study)}")
            if mistaken := [role for role in roles if _read_as(role, self.reads) != name]:
                raise BadInput(
                    f"the stage {self.written.__name__} is given {mistaken[0]!r} of {name}, which reads like its "
                    f"parameter {_read_as(mistaken[0], self.reads)}: rename one"
                )
            inputs |= roles
        told = ", ".join(f"{name} {value}" for name, value in given.items() if isinstance(value, str | int | float))
        return dispatch(self, self.config.of(study, **{"cell": told} | given), **inputs)

    def _work(self, run: StageRun, config: StageConfiguration, **inputs: Any) -> Any:
        values = {name: getattr(config, name) for name in _parameters(self.written) if name not in self.reads}
        read = {name: [role for role in inputs if _read_as(role, self.reads) == name] for name in self.reads}
        given = {name: _given(name, {role: inputs[role] for role in roles}) for name, roles in read.items() if roles}
        return self.written(run, **values, **given)

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
    and `name` come with every study. `small` are the keys with which `ratchet rehearse` takes minutes.
    """
    if function is None:
        return functools.partial(study, small=small)
    if function.__name__ != (stem := function.__module__.rpartition(".")[2]):
        raise BadInput(f"the function with @study is called {function.__name__}(): call it {stem}(), like its file")
    hints, own = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    module = vars(sys.modules[function.__module__])
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
    model = _class("Study", StudyBase, function, fields)

    @functools.wraps(function)
    def page(study: StudyBase, stage: Dispatcher) -> Any:
        token = _WALKED.set((study, stage))
        try:
            return function(**{name: getattr(study, name) for name in own})
        finally:
            _WALKED.reset(token)

    page.__annotations__ = {"study": model, "stage": Dispatcher}
    page.__signature__ = inspect.signature(lambda study, stage: None)  # type: ignore[attr-defined]
    module |= {"page": page, "small": small or {}}
    return study_flow(page)


KEY = "key_"
"""Before a number that is the key of a dictionary, and no place in a list."""
REPORT = Stage("report", ArmsConfig, "tasks.findings.side_by_side:report", version=3, needs="cpu")


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
    try:
        study, dispatch = _WALKED.get()
    except LookupError:
        raise BadInput("report() is a stage: call it in a function with @study") from None
    several: dict[str, list[Any]] = {arm: [*of] if isinstance(of, list | tuple) else [of] for arm, of in arms.items()}
    if strange := [arm for arm, of in several.items() if not of or not all(isinstance(one, Handle) for one in of)]:
        raise BadInput(f"report: the arm {strange[0]!r} is no stage call, and no list of one or more{too_low(study)}")
    if unknown := [name for name in compare if name not in several]:
        raise BadInput(f"report: compare names {unknown[0]!r}; the arms are {', '.join(several)}")
    if len(compare) not in (0, 2) or len(several) < 2 or len({*compare}) != len(compare):
        raise BadInput("report: two or more arms are compared, and compare names two of them: an arm and its reference")
    varied = {arm: _varied(of) for arm, of in several.items()}
    names = {name: None for differ in varied.values() for name in differ}
    by = " and ".join(names) or "seed"
    alone = "all" if names else str(study.seed)  # an arm of one call, which is of no fold where others have some
    called = {
        arm: [", ".join(str(differ[name][number]) for name in differ) or alone for number in range(len(of))]
        for (arm, of), differ in zip(several.items(), varied.values(), strict=True)
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
        role_of(arm, by, value): one for arm, of in several.items() for value, one in zip(called[arm], of, strict=True)
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
    values = {name: [one.get(name) for one in fields] for one in fields for name in one}
    return {name: several for name, several in values.items() if any(value != several[0] for value in several)}


def _fields_of_all(handle: Handle) -> dict[str, Any]:
    """The scientific fields of a stage call and of all that it reads; of one name its own, or the nearest."""
    read = [_fields_of_all(given) for given in handle.inputs.values()]
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


def _roles(name: str, given: Any) -> dict[str, Handle]:
    """A stage call by the name of the parameter; of several each by that and its number or key."""
    if isinstance(given, list | tuple):
        return {f"{name}_{number}": handle for number, handle in enumerate(given)}
    if not isinstance(given, dict):
        return {name: given}
    if strange := [key for key in given if not isinstance(key, int) and re.fullmatch(rf"({KEY})?\d+", str(key))]:
        raise BadInput(f"{name} has the key {strange[0]!r}: write a number as a number")
    return {f"{name}_{KEY if isinstance(key, int) else ''}{key}": handle for key, handle in given.items()}


def _read_as(role: str, names: Sequence[str]) -> str:
    """The parameter that an input of this role is given to."""
    return max((name for name in names if role == name or role.startswith(f"{name}_")), key=len, default="")


def _given(name: str, inputs: dict[str, Any]) -> Any:
    """Inverse of `_roles`."""
    if name in inputs:
        return inputs[name]
    several = {role.removeprefix(f"{name}_"): given for role, given in inputs.items()}
    if all(key.isdigit() for key in several):
        return [several[key] for key in sorted(several, key=int)]
    return {int(key.removeprefix(KEY)) if key.startswith(KEY) else key: given for key, given in several.items()}
