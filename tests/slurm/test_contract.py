"""The contract that the fake SLURM of tests/deployments/slurm keeps, kept by the real one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from deployments.slurm.cluster.client import SlurmCommands
from tests.deployments.slurm import contract
from tests.slurm.harness import Cluster, until

pytestmark = pytest.mark.slurm_long


class Real:
    """The shared cluster as the contract wants it (contract.Bench)."""

    def __init__(self, cluster: Cluster) -> None:
        self.client, self._cluster = SlurmCommands(), cluster

    def wait(self, condition: Callable[[], bool]) -> None:
        until("what the contract says", condition)

    @contextmanager
    def down(self) -> Iterator[None]:
        self._cluster.script("kill-ctld")
        try:
            yield
        finally:
            self._cluster.script("restart-ctld")

    def frozen(self) -> AbstractContextManager[None]:
        return self._cluster.frozen_controller()


class TestRealSlurm(contract.Contract):
    @pytest.fixture
    def bench(self, _cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
        for name, value in _cluster.environment.items():
            monkeypatch.setenv(name, value)
        yield Real(_cluster)
        _cluster.put_right()
