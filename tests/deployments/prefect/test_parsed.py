"""Source files are parsed, whatever other threads do meanwhile."""

import ast
import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from deployments.dag.sources import parsed

NESTED = "\n".join(["x = " + "[" * 20 + "]" * 20] * 30)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns within a parse: the collector of garbage runs often, and lets others go first."""

    def yield_(*_: object) -> None:
        time.sleep(0)

    thresholds = gc.get_threshold()
    gc.callbacks.append(yield_)
    gc.set_threshold(20)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(yield_)


def errors_of(parse: Callable[[str], ast.Module], seconds: float = 1.5) -> list[SystemError]:
    found, end = list[SystemError](), time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < end:
            try:
                assert len(parse(NESTED).body) == 30
            except SystemError as error:
                found.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_that_parse_at_once_do_not_confuse_each_other(restless):
    """python/cpython issue 106905 ended a study's flow run: `AST constructor recursion depth mismatch`."""
    assert not errors_of(parsed)


def test_what_is_no_python_is_a_syntax_error_with_its_file():
    with pytest.raises(SyntaxError) as raised:
        parsed("def", "mine.py")
    assert raised.value.filename == "mine.py"
