"""The real cluster, once a worker of a test run; order.py has the order of the tests and the count of their jobs."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.alone import Alone
from tests.slurm.harness import Bench, Cluster, NoCluster

REQUIRED = "RATCHET_SLURM_REQUIRED"
"""1: no cluster is a failure."""


def cluster_or_skip(**settings: Any) -> Cluster:
    """A cluster; without SLURM the test is skipped, or fails where SLURM is required.

    A start that fails is tried once more, with other ports: it would be the end of all tests of this worker.
    """
    with suppress(NoCluster):
        return Cluster(**settings)
    try:
        return Cluster(**settings)
    except NoCluster as error:
        reason = f"no SLURM cluster here ({error}); tests/slurm/cluster.sh install gets the packages"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    cluster = cluster_or_skip()
    yield cluster
    cluster.wipe()


@pytest.fixture(scope="session")
def _bench(_cluster: Cluster, prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The pools and deployments, made by the commands of docs/cluster.md."""
    bench = Bench(_cluster, prefect_server, tmp_path_factory.mktemp("slurm"))
    bench.deploy()
    yield bench
    bench.stop_workers()


@pytest.fixture
def bench(_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Cluster, server and a process that follows the site's studies, as if no test had used them before."""
    with _bench.at_hand(monkeypatch):
        _bench.ensure_worker()
        yield _bench
    _bench.stop_workers("ratchet")  # it would take the studies of tests without SLURM, which share the server


@pytest.fixture
def own_bench(_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    """Makes a bench whose cluster is this test's own, with other settings, in the place of the shared one."""
    with ExitStack() as ends:

        def make(resources: dict[str, Any] | None = None, **settings: Any) -> Bench:
            cluster = cluster_or_skip(**settings)
            ends.callback(cluster.wipe)
            bench = Bench(cluster, _bench.address, tmp_path / "own", resources or {})
            _bench.put_right()
            ends.callback(bench.stop_workers)
            ends.enter_context(bench.at_hand(monkeypatch))
            bench.ensure_worker()
            return bench

        yield make


@pytest.fixture
def alone(_cluster: Cluster, own_prefect_home: Path, tmp_path: Path) -> Iterator[Alone]:
    alone = Alone(_cluster, tmp_path / "alone", own_prefect_home)
    yield alone
    for command in alone.begun:
        command.process.kill()
        command.process.wait()
    _cluster.put_right()
