"""`robustness = study_flow(page)`: a study's page as a Prefect flow, which is made when Prefect asks for it.

A page is read by commands that answer at once, and Prefect takes seconds to import.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from deployments.dag.page import Page, load_page
from storage.errors import BadInput

if TYPE_CHECKING:
    from prefect import Flow


class LazyFlow:
    """Stands for the flow where Prefect was not imported yet; called, or asked for what a flow has, it makes it."""

    def __init__(self, make: Callable[[], Flow[..., Any]]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Flow[..., Any]:
        return self._make()

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return self.made(*positional, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for such names itself, of whatever stands in a module
            raise AttributeError(name)
        return getattr(self.made, name)


def lazily(make: Callable[[], Flow[..., Any]]) -> Flow[..., Any]:
    """The flow that `make` makes, for a module to name. Prefect, which imports the module to find it there, is given
    the flow itself."""
    flow: Any = LazyFlow(make)
    return flow.made if "prefect" in sys.modules else flow


def study_flow(function: Callable[..., Any]) -> Flow[..., Any]:
    """The flow of a page, for a module to name: `robustness = study_flow(page)`."""
    module = sys.modules[function.__module__]
    name = module.__spec__.name if module.__spec__ else module.__name__  # also of what `python -m` runs
    page = load_page(name if "." in name else inspect.getfile(inspect.unwrap(function)))

    def make() -> Flow[..., Any]:
        from deployments.flow import flow_of

        return flow_of(page)

    return lazily(make)


def made(flow: Any) -> Any:
    """Flow that a module names, as Prefect takes it."""
    return flow.made if isinstance(flow, LazyFlow) else flow


def require_flow(page: Page) -> None:
    """BadInput when Prefect would not find the page's flow."""
    flow = page.names.get(page.name)
    if not isinstance(flow, LazyFlow | getattr(sys.modules.get("prefect"), "Flow", LazyFlow)):
        raise BadInput(f"{page.file}: names no flow {page.name!r}: end it with `{page.name} = study_flow(page)`")
