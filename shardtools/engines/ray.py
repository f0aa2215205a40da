"""Tasks on a Ray cluster: the same tasks, which commit themselves; Ray runs those of a lost node again."""

import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any

from shardtools.engines.engine import MakeWorker, Report, Worker
from shardtools.ledger import Record
from shardtools.worker import BuildTask
from streampipe.errors import ConfigError, StreampipeError

REPORT_SECONDS = 0.5
IN_FLIGHT = 4
"""Tasks handed to Ray for each CPU of the cluster, so that a plan of many thousands stays small."""


class RayEngine:
    """Runs tasks on a Ray cluster, each on one CPU.

    All nodes must reach input, output and scratch, and have the same packages.

    Args:
        make_worker: makes the worker of a process.
        workers: how many CPUs a cluster started here gets.
        address: of a cluster that is there (`auto`: the one of this machine), or "" to start one here.
    """

    def __init__(self, make_worker: MakeWorker, workers: int, address: str) -> None:
        self._make_worker = make_worker
        self._workers = workers
        self._address = address
        self._ray: Any = None
        self._name = secrets.token_hex(8)

    def __enter__(self) -> "RayEngine":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError("--engine ray needs Ray: pip install 'streampipe-llm[build,ray]'") from error
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._address:
            options["address"] = self._address
        else:
            options.update(num_cpus=self._workers, include_dashboard=False, _node_ip_address="127.0.0.1")
        try:
            _knock(self._address)
            ray.init(**options, runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "false"}})
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at {self._address}" if self._address else "on this machine"
            raise ConfigError(f"--engine ray: no Ray cluster {where}: {error}; check --ray-address") from error
        self._ray = ray
        return self

    def __exit__(self, *error: object) -> None:
        if self._ray is not None:
            self._ray.shutdown()

    def run(self, tasks: Sequence[BuildTask], report: Report) -> None:
        """Run all tasks; see `Engine`. A task whose node or process is lost is run again elsewhere."""
        ray = self._ray
        remote = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(_run)
        recipe = ray.put(self._make_worker)
        board = _Totals()
        todo, waiting = list(reversed(tasks)), list[Any]()
        try:
            while todo or waiting:
                room = max(int(ray.cluster_resources().get("CPU", 1)) * IN_FLIGHT - len(waiting), 0)
                waiting += [remote.remote(recipe, self._name, todo.pop()) for _ in range(min(room, len(todo)))]
                ended, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=REPORT_SECONDS)
                report(board, [board.add(ray.get(reference)) for reference in ended])
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, StreampipeError) else StreampipeError(f"a task failed: {error}") from error
        except ray.exceptions.RayError as error:
            raise StreampipeError(
                f"the Ray cluster failed: {error}; run the same command again to go on once it is well"
            ) from error
        finally:
            for reference in waiting:
                ray.cancel(reference, force=False)


def _knock(address: str) -> None:
    """Find out fast that nobody listens; Ray itself tries for minutes.

    Raises:
        OSError: if so.
    """
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


class _Totals:
    """Counts what came back; Ray has a dashboard for the rest."""

    def __init__(self) -> None:
        self._documents = self._tokens = 0

    def add(self, result: tuple[Record, int, int]) -> Record:
        record, documents, tokens = result
        self._documents += documents
        self._tokens += tokens
        return record

    def totals(self) -> tuple[int, int]:
        return self._documents, self._tokens

    def slow(self, seconds: float) -> list[str]:
        del seconds
        return []


class _Counter:
    """Counts what one task encodes."""

    def __init__(self) -> None:
        self.documents = self.tokens = 0

    def advance(self, documents: int, tokens: int) -> None:
        self.documents += documents
        self.tokens += tokens

    def at(self, where: str) -> None:
        del where


_worker: dict[str, Worker] = {}
"""The worker of this process, by the engine that it belongs to; Ray keeps a process for many tasks."""


def _run(recipe: MakeWorker, name: str, task: BuildTask) -> tuple[Record, int, int]:
    if name not in _worker:
        _worker.clear()
        _worker[name] = recipe()
    meter = _Counter()
    return _worker[name].run(task, meter), meter.documents, meter.tokens
