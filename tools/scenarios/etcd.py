"""A private cluster of three etcd nodes on this machine, for ``tools/bench peers``.

Debian has it: ``apt-get install etcd-server`` and, in the environment that runs this, ``pip install grpcio``. A row is
a key with its value. etcd has no request that adds to a value, so an update is a put, and transfers and hot rows are
left out. A read is "serializable" in the words of etcd (the asked node answers alone), a strict read "linearizable".
"""

import contextlib
import importlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.bench import READ, ROWS, Measured, Run, Statements
from tools.cluster import DemoError, free_ports, processor_s
from tools.scenarios.galera import Transact, end, run_clients

WORKS = ("insert", "update", "read", "strict", "mix")
READY_S = 30.0
PUT, RANGE = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
SERIALIZABLE = b"\x38\x01"  # field 7 of etcd's RangeRequest


def missing() -> str:
    """Return the packages that etcd needs and that are not installed; empty if none is missing."""
    lacks = [] if shutil.which("etcd") else ["etcd (apt-get install etcd-server)"]
    return " and ".join(lacks + ([] if importlib.util.find_spec("grpc") else ["the Python package grpcio"]))


class Etcd:
    """Three nodes, and the operations of their clients."""

    def __init__(self, directory: Path) -> None:
        self._grpc: Any = importlib.import_module("grpc")
        ports = free_ports(6)
        self._clients, peers = ports[:3], ports[3:]
        members = ",".join(f"n{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
        self._commands = [
            ["etcd", "--name", f"n{number}", "--data-dir", str(directory / f"etcd{number}"), "--logger", "zap"]
            + ["--log-outputs", str(directory / f"log{number}"), "--quota-backend-bytes", str(4 << 30)]
            + [f"--{which}-client-urls=http://127.0.0.1:{port}" for which in ("listen", "advertise")]
            + [f"--{which}-urls=http://127.0.0.1:{peer}" for which in ("listen-peer", "initial-advertise-peer")]
            + ["--initial-cluster", members, "--initial-cluster-state", "new"]
            for number, (port, peer) in enumerate(zip(self._clients, peers, strict=True))
        ]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the nodes, and write the rows.

        Raises:
            DemoError: the cluster takes no write in time.
        """
        for command in self._commands:
            quiet = subprocess.DEVNULL
            self.processes.append(subprocess.Popen(command, stdout=quiet, stderr=quiet, process_group=0))
        until = time.monotonic() + READY_S
        with self._channel(0) as channel:
            put = channel.unary_unary(PUT)
            while True:
                try:
                    put(_put(b"ready", b""), timeout=1)
                    break
                except self._grpc.RpcError as error:
                    if time.monotonic() > until:
                        raise DemoError(f"etcd is not ready after {READY_S:g} s: {error}") from error
                    time.sleep(0.2)
            for row in range(1, ROWS + 1):
                put(_put(b"row%d" % row, b"0"), timeout=READY_S)

    def stop(self) -> None:
        for process in self.processes:
            end(process)

    def processor_s(self) -> float:
        """Return the processor time of the nodes, in seconds."""
        return sum(processor_s(process.pid) for process in self.processes)

    def _channel(self, node: int) -> Any:
        alone = [("grpc.use_local_subchannel_pool", 1)]  # a separate connection for each client
        return self._grpc.insecure_channel(f"127.0.0.1:{self._clients[node]}", options=alone)

    def run(self, work: str, clients: int, seconds: float) -> Measured:
        """Let clients work, spread evenly over the nodes, and return the result."""

        @contextlib.contextmanager
        def connect(number: int) -> Iterator[Transact]:
            with self._channel(number % 3) as channel:
                put, read = channel.unary_unary(PUT), channel.unary_unary(RANGE)

                def transact(statements: Statements) -> int:
                    ((sql, params),) = statements
                    if sql == READ:
                        read(_range(b"row%d" % params[0]) + (b"" if work == "strict" else SERIALIZABLE))
                    else:
                        key = b"new%d" % params[0] if work == "insert" else b"row%d" % params[-1]
                        put(_put(key, str(params).encode()))
                    return 0

                yield transact

        return run_clients(Run(work, 3, clients, seconds, self.processor_s), connect).measured()


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128, "a length of one byte"
    return bytes((number << 3 | 2, len(data))) + data


def _put(key: bytes, value: bytes) -> bytes:
    return _field(1, key) + _field(2, value)


def _range(key: bytes) -> bytes:
    return _field(1, key)


@contextlib.contextmanager
def etcd(directory: Path) -> Iterator[Etcd]:
    """Run a cluster of etcd with its rows inside the block."""
    cluster = Etcd(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
