"""What the tests of the toy training share."""

from collections.abc import Iterator

import pytest

from tests.tasks.tiny import HOOKS, SEEN, ToyConfig, toy_directory, toy_to_the_end, what_must_be_equal


@pytest.fixture(autouse=True)
def _no_hooks() -> Iterator[None]:
    HOOKS.clear()
    SEEN.clear()
    yield
    HOOKS.clear()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the toy leaves when nothing stops it."""
    root, toy = tmp_path_factory.mktemp("undisturbed"), ToyConfig()
    assert [outcome.end_state for outcome in toy_to_the_end(root, toy)] == ["finished"]
    return what_must_be_equal(toy_directory(root, toy))
