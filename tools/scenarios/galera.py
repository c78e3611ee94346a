"""A private MariaDB Galera cluster of three nodes on this machine, for ``tools/bench peers``.

Debian has what it needs: ``apt-get install mariadb-server galera-4 rsync`` and, in the environment that runs this,
``pip install mysqlclient``. Its service need not run: the nodes are processes of this program, in a directory of its
own.
"""

import contextlib
import importlib.util
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.bench import ROWS, SCHEMA, Draw, Measured, Run, Statements
from tools.cluster import DemoError, free_ports, processor_s

READY_S = 120.0
STOP_S = 30.0
PROVIDER = "/usr/lib/galera/libgalera_smm.so"
INSTALL = ("mariadb-install-db", "--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal")
CONFLICTS = frozenset({1213, 1205, 1020, 1047, 1180})  # deadlock, lock timeout, changed row, unready node, COMMIT error
WAYS_OUT = "install them: apt-get install mariadb-server galera-4 rsync; and pip install mysqlclient"


def driver() -> Any:
    """Return the module of MariaDB's client.

    Raises:
        DemoError: a needed package is not installed; the text names it.
    """
    lacks = [name for name in ("mariadbd", "mariadb-install-db", "rsync") if shutil.which(name) is None]
    if not Path(PROVIDER).exists():
        lacks.append(PROVIDER)
    if importlib.util.find_spec("MySQLdb") is None:
        lacks.append("the Python package mysqlclient")
    if lacks:
        raise DemoError(f"a Galera cluster needs {', '.join(lacks)}; {WAYS_OUT}")
    return importlib.import_module("MySQLdb")


class GaleraNode:
    """One node: its files, its ports and its process."""

    def __init__(self, directory: Path, number: int, ports: list[int]) -> None:
        self.directory = directory / f"galera{number}"
        self.port, self.group_port, self.state_port, self.transfer_port = ports
        self.socket = self.directory / "socket"
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, members: str) -> None:
        """Write the node's configuration: durable commits, and defaults for the rest."""
        self.directory.mkdir()
        user = "user=mysql" if os.getuid() == 0 else ""
        (self.directory / "my.cnf").write_text(
            f"""[mysqld]
{user}
datadir={self.directory}/data
socket={self.socket}
pid-file={self.directory}/pid
log-error={self.directory}/log
port={self.port}
bind-address=127.0.0.1
skip-name-resolve
max_connections=300
binlog_format=ROW
innodb_autoinc_lock_mode=2
innodb_flush_log_at_trx_commit=1
innodb_snapshot_isolation=ON
wsrep_on=ON
wsrep_provider={PROVIDER}
wsrep_cluster_name=peers
wsrep_cluster_address=gcomm://{members}
wsrep_node_address=127.0.0.1:{self.group_port}
wsrep_sst_method=rsync
wsrep_sst_receive_address=127.0.0.1:{self.transfer_port}
wsrep_slave_threads=4
wsrep_provider_options="gmcast.listen_addr=tcp://127.0.0.1:{self.group_port};ist.recv_addr=127.0.0.1:{self.state_port}"
"""
        )

    def start(self, *, first: bool) -> None:
        """Start the process; with ``first``, it founds the cluster."""
        more = ["--wsrep-new-cluster"] if first else []
        command = ["mariadbd", f"--defaults-file={self.directory}/my.cnf", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End the process of a server, by force if it does not end in time."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


Transact = Callable[[Statements], int]  # runs a transaction until it commits; returns how many attempts were lost


def run_clients(run: Run, connect: Callable[[int], contextlib.AbstractContextManager[Transact]]) -> Run:
    def one(number: int) -> None:
        with connect(number) as transact:
            draw = Draw(run.work, number, run.clients)
            for start in run.starts():
                statements = draw()
                lost = transact(statements)
                run.count(start, statements, lost)

    with ThreadPoolExecutor(run.clients) as threads:
        list(threads.map(one, range(run.clients)))
    return run


class Galera:
    """Three nodes, and the operations of their clients."""

    def __init__(self, directory: Path) -> None:
        self._driver = driver()
        self._inserted = self._added = 0  # the inserted rows and the added sum that were acknowledged
        ports = free_ports(12)
        self.nodes = [GaleraNode(directory, number, ports[4 * number : 4 * number + 4]) for number in range(3)]

    def connect(self, node: int, database: str = "bench") -> Any:
        """Return a connection to a node, which accepts several statements in one text."""
        flags = importlib.import_module("MySQLdb.constants.CLIENT").MULTI_STATEMENTS
        socket = str(self.nodes[node].socket)
        return self._driver.connect(
            unix_socket=socket, user="root", database=database, autocommit=True, client_flag=flags
        )

    def start(self) -> None:
        """Start the nodes, one after the other, and make the tables.

        Raises:
            DemoError: mariadb-install-db fails, or a node is not ready in time.
        """
        members = ",".join(f"127.0.0.1:{node.group_port}" for node in self.nodes)
        for node in self.nodes:
            node.configure(members)
        owner = ["--user=mysql"] if os.getuid() == 0 else []
        data = self.nodes[0].directory / "data"
        made = subprocess.run([*INSTALL, *owner, f"--datadir={data}"], capture_output=True, check=False)
        if made.returncode:
            raise DemoError(f"mariadb-install-db failed: {made.stderr.decode(errors='replace')[-500:]}")
        for number, node in enumerate(self.nodes):
            (node.directory / "data").mkdir(exist_ok=True)
            if os.getuid() == 0:
                subprocess.run(["chown", "-R", "mysql:mysql", str(node.directory)], check=True)
            node.start(first=number == 0)
            self._wait_ready(number)
            if number == 0:
                with contextlib.closing(self.connect(0, "")) as db:
                    db.cursor().execute("CREATE DATABASE bench")
        with contextlib.closing(self.connect(0)) as db:
            cursor = db.cursor()
            for sql in SCHEMA:
                cursor.execute(sql.replace("INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY"))
            cursor.executemany("INSERT INTO bench_row(id, value) VALUES (%s, 0)", [(n,) for n in range(1, ROWS + 1)])

    def _wait_ready(self, number: int) -> None:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            with contextlib.suppress(self._driver.Error), contextlib.closing(self.connect(number, "")) as db:
                cursor = db.cursor()
                cursor.execute("SHOW STATUS LIKE 'wsrep_ready'")
                if cursor.fetchone()[1] == "ON":
                    return
            time.sleep(0.3)
        log = self.nodes[number].directory / "log"
        raise DemoError(f"Galera's node {number} is not ready after {READY_S:g} s: see {log}")

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.stop()

    def processor_s(self) -> float:
        """Return the processor time of the nodes, in seconds."""
        return sum(processor_s(node.process.pid) for node in self.nodes if node.process is not None)

    def run(self, work: str, clients: int, seconds: float) -> Measured:
        """Let clients work, spread evenly over the nodes, and return the result."""

        @contextlib.contextmanager
        def connect(number: int) -> Iterator[Transact]:
            with contextlib.closing(self.connect(number % 3)) as db:
                if work == "strict":
                    db.query("SET SESSION wsrep_sync_wait = 1")
                yield lambda statements: next(lost for lost in itertools.count() if self._try(db, statements))

        run = run_clients(Run(work, 3, clients, seconds, self.processor_s), connect)
        self._inserted += run.written if work == "insert" else 0
        self._added += run.written if work in ("update", "hot", "mix") else 0
        return run.measured()

    def _try(self, db: Any, statements: Statements) -> bool:
        """Run a transaction in one round trip; return False if it lost a conflict and was rolled back."""
        texts = [_filled(db, sql, params) for sql, params in statements]
        text = texts[0] if len(texts) == 1 else "; ".join(["BEGIN", *texts, "COMMIT"])
        try:
            db.query(text)
            while True:
                db.store_result()
                if db.next_result() != 0:
                    return True
        except self._driver.Error as error:
            if not error.args or error.args[0] not in CONFLICTS:
                raise
            with contextlib.suppress(self._driver.Error):
                while db.next_result() == 0:
                    db.store_result()
            db.rollback()
            return False

    def check(self) -> str:
        """Compare the acknowledged changes with the tables of each node; return the difference, or an empty text."""
        wrong = []
        for number in range(3):
            with contextlib.closing(self.connect(number)) as db:
                cursor = db.cursor()
                cursor.execute("SET SESSION wsrep_sync_wait = 15")
                cursor.execute("SELECT count(*) FROM bench_item")
                items = cursor.fetchone()[0]
                cursor.execute("SELECT sum(value) FROM bench_row")
                total = int(cursor.fetchone()[0])
            if (items, total) != (self._inserted, self._added):
                wrong.append(f"node {number} has {items} rows and the sum {total}")
        told = f"Galera has told of {self._inserted} rows and the sum {self._added}, and lost or doubled something: "
        return told + ", ".join(wrong) if wrong else ""


def _filled(db: Any, sql: str, params: tuple[Any, ...]) -> str:
    pieces = sql.split("?")
    values = [db.literal(value).decode() for value in params]
    return "".join(piece + value for piece, value in zip(pieces, [*values, ""], strict=True))


@contextlib.contextmanager
def galera(directory: Path) -> Iterator[Galera]:
    """Run a Galera cluster inside the block."""
    if os.getuid() == 0:
        directory.chmod(0o755)
    cluster = Galera(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
