"""A fork of a program that has a node's file open: an open transaction and leased ids stay with the parent."""

import errno
import mmap
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from bedrockish.client.blocking import Connection, connect
from bedrockish.common import forks
from tools.cluster import LocalCluster, LocalNode

pytestmark = pytest.mark.cluster


@pytest.fixture
def db(node: LocalNode) -> Iterator[Connection]:
    """A session with a table of two rows."""
    with connect(str(node.database)) as made:
        made.execute("CREATE TABLE forked(id INTEGER PRIMARY KEY, v)")
        made.execute("INSERT INTO forked VALUES (1, 0), (2, 0)")
        yield made
        made.execute("DROP TABLE forked")


def run(node: LocalNode, code: str, before: str = "") -> str:
    """Run a program with a session ``db``; return its output. ``before`` runs before the session is opened."""
    opening = (
        "import os, sys, bedrockish\n"
        "from bedrockish.common import forks\n"
        "forks.WAIT_S = 60.0  # also on a busy machine, a fork waits as long as it should\n"
        f"{before}\n"
        f"db = bedrockish.connect({str(node.database)!r})\n"
    )
    # Python 3.12 and later warns of each fork of a process that has threads; what may go wrong there is tested here.
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", opening + code]
    told = subprocess.run(program, capture_output=True, text=True, check=False)
    assert not told.stderr
    return told.stdout


def test_child_cannot_continue_its_parent_s_transaction(node: LocalNode, db: Connection) -> None:
    """A COMMIT by the child would take the place of the parent's, and the parent's later statements would be lost."""
    told = run(
        node,
        """
tx = db.begin()
tx.execute("UPDATE forked SET v = 1 WHERE id = 1")
if not os.fork():
    for act in (lambda: tx.execute("UPDATE forked SET v = 7 WHERE id = 1"), tx.commit):
        try:
            act()
        except bedrockish.ClientClosedError as error:
            print("before a fork" in str(error))
    tx.rollback()
    print(db.execute("SELECT sum(v) FROM forked").value())
    with db.transaction() as own:
        own.execute("INSERT INTO forked VALUES (3, 3)")
    db.close()
    sys.stdout.flush()
    os._exit(0)
os.wait()
tx.execute("UPDATE forked SET v = 2 WHERE id = 2")
tx.commit()
""",
    )
    assert told == "True\nTrue\n0\n"
    assert db.execute("SELECT id, v FROM forked ORDER BY id", read="strict").rows == [(1, 1), (2, 2), (3, 3)]


def test_child_does_not_run_a_known_statement_of_its_parent_s_transaction(node: LocalNode, db: Connection) -> None:
    told = run(
        node,
        """
from bedrockish import dbapi
own = dbapi.connect(PATH)
sql = "UPDATE forked SET v = ? WHERE id = ?"
for number in (1, 2):
    own.execute(sql, (5, number))
if not os.fork():
    try:
        own.execute(sql, (7, 1))
    except dbapi.Error as error:
        print("before a fork" in str(error))
    sys.stdout.flush()
    os._exit(0)
os.wait()
own.execute(sql, (6, 1))
own.commit()
""".replace("PATH", repr(str(node.database))),
    )
    assert told == "True\n"
    assert db.execute("SELECT v FROM forked ORDER BY id", read="strict").rows == [(6,), (5,)]


@pytest.mark.parametrize("refused", [(), (forks.WIPE_ON_FORK, -1)], ids=["any advice taken", "advice refused"])
def test_process_is_asked_for_its_id_where_the_system_does_not_mark_forks(
    monkeypatch: pytest.MonkeyPatch, refused: tuple[int, ...]
) -> None:
    """Old releases of QEMU take any advice about memory, and do nothing: no fork would be noticed."""

    class Page(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            if option in refused:
                raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Page)
    assert forks._new_mark()[0] == 0


@pytest.mark.parametrize("by_url", [False, True])
def test_child_of_a_fork_that_calls_no_hooks_of_python_opens_links_of_its_own(
    node: LocalNode, db: Connection, alone: LocalCluster, *, by_url: bool
) -> None:
    """uWSGI forks its workers in C. Child and parent would share links and transactions, and locks on the file."""
    told = run(
        node,
        """
import ctypes
from bedrockish import dbapi
db.close()
db, own, pool = bedrockish.connect(PLACE), dbapi.connect(PLACE), bedrockish.connect_pool(PLACE, size=1)
db.execute("SELECT 1")
with pool.connection() as lent:
    lent.execute("SELECT 1")
inside, known = db.begin(), "UPDATE forked SET v = v + ? WHERE id = 1"
for _ in range(2):
    own.execute(known, (1,))
inside.execute("UPDATE forked SET v = 5 WHERE id = 2")
while len(asleep) < threading.active_count() - 1:
    time.sleep(0.01)
time.sleep(0.1)
children = []
for child in range(3):
    children.append(ctypes.PyDLL(None).fork())
    if not children[-1]:
        try:
            for act in (lambda: own.execute(known, (7,)), own.commit, lambda: inside.execute("DELETE FROM forked")):
                try:
                    act()
                except (dbapi.Error, bedrockish.ClientClosedError) as error:
                    assert "before a fork" in str(error), error
                else:
                    raise AssertionError(act)
            own.rollback()
            inside.rollback()
            for number in range(20):
                with db.transaction() as tx:
                    tx.execute("INSERT INTO forked(v) VALUES (?)", (child,))
                with pool.connection() as lent:
                    assert lent.execute("SELECT count(*) FROM forked WHERE v = ?", (child,)).value() >= number
            db.close(), own.close(), pool.close()
            os.write(1, b"done\\n")  # in one call: unbuffered, print would write the line and its end apart
        finally:
            os._exit(0)
for child in children:
    while os.waitpid(child, os.WNOHANG) == (0, 0):  # no thread keeps the links alive, see above
        for one in (own, inside):
            one.execute("SELECT 1")
        time.sleep(0.01)
own.commit()
inside.commit()
""".replace("PLACE", repr(alone.url() if by_url else str(node.database))),
        """
import threading, time, types
from bedrockish.common import keeper
# CPython itself hangs in the child of such a fork if another thread waits for the interpreter at that moment. So the
# threads that maintain clients, which wake several times a second, sleep during the test.
asleep = []
keeper.time = types.SimpleNamespace(sleep=lambda _: asleep.append(1) or time.sleep(600), monotonic=time.monotonic)
""",
    )
    assert told == "done\n" * 3
    assert db.execute("SELECT id, v FROM forked WHERE id < 3", read="strict").rows == [(1, 2), (2, 5)]
    assert db.execute("SELECT count(*) FROM forked").value() == 2 + 3 * 20


def test_child_leaves_the_open_results_of_its_parent(node: LocalNode, db: Connection) -> None:
    told = run(
        node,
        """
import time
from bedrockish import dbapi
from bedrockish.local import open_results
own = dbapi.connect(PATH)
numbers = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000) SELECT i FROM n"
cursor = own.execute(numbers)
if not os.fork():
    print(len(cursor.fetchmany(1000)))
    try:
        cursor.fetchone()
    except dbapi.OperationalError as error:
        print(error.code, "the parent process has this result" in str(error))
    open_results.IDLE_S = 0.0
    other = own.execute(numbers)
    while not other._source._running.parts:  # the keeper of the child reads it into memory
        time.sleep(0.01)
    time.sleep(0.2)
    print(len(cursor._source._running.parts))
    print(len(other.fetchall()))
    sys.stdout.flush()
    os._exit(0)
os.wait()
print(len(cursor.fetchall()))
""".replace("PATH", repr(str(node.database))),
    )
    assert told == "1000\nresult_lost True\n0\n5000\n5000\n"


def test_child_needs_no_lock_of_a_thread_that_has_begun_to_wait_for_the_fork(node: LocalNode, db: Connection) -> None:
    told = run(
        node,
        """
import signal, threading
held = threading.Event()
def wait():
    with forks._done._cond:  # as a waiting thread does for a moment
        held.set()
        threading.Event().wait()
threading.Thread(target=wait, daemon=True).start()
held.wait()
signal.alarm(60)
forks._after_fork_in_child()
print(db.execute("SELECT count(*) FROM forked").value())
sys.stdout.flush()
os._exit(0)
""",
    )
    assert told == "2\n"


def test_child_and_parent_give_their_rows_different_ids(node: LocalNode, db: Connection) -> None:
    told = run(
        node,
        """
with db.transaction() as tx:
    tx.execute("INSERT INTO forked(v) VALUES (0)")
go_read, go_write = os.pipe()
child = os.fork()
with db.transaction() as tx:
    tx.execute("INSERT INTO forked(v) VALUES (?)", [child == 0])
    if child:
        os.write(go_write, b"1")
        os.waitpid(child, 0)
    else:
        os.read(go_read, 1)
if not child:
    os._exit(0)
""",
    )
    assert told == ""
    assert db.execute("SELECT count(DISTINCT id) FROM forked", read="strict").value() == 5


@pytest.mark.parametrize("begins", ["", "db.begin().execute"])
def test_forked_child_can_read_if_another_parent_thread_was_reading(
    node: LocalNode, db: Connection, begins: str
) -> None:
    """The child must not wait for a lock of a thread that it does not have: one of Python, or one inside SQLite."""
    told = run(
        node,
        f"""
import threading, time
run = {begins or "db.execute"}
numbers = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 100000000) SELECT count(*) FROM n"
def count():
    try:
        run(numbers)
    except bedrockish.BedrockishError as error:
        print(error.code)
thread = threading.Thread(target=count)
thread.start()
time.sleep(0.3)
child = os.fork()
if not child:
    import signal
    signal.alarm(60)
    print(db.execute("SELECT count(*) FROM forked").value())
    with db.transaction() as own:
        own.execute("INSERT INTO forked VALUES (3, 3)")
    db.close()
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
db.close()
thread.join()
""",
    )
    assert told == "2\n0\nclosed\n"
    assert db.execute("SELECT count(*) FROM forked", read="strict").value() == 3


@pytest.mark.parametrize("begins", ["", "db.begin().execute"])
def test_children_forked_at_each_moment_of_a_statement_read(node: LocalNode, db: Connection, begins: str) -> None:
    """The child would hang if another thread held a lock at the fork, such as that of an opening connection."""
    told = run(
        node,
        f"""
import threading, time
numbers = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 100000000) SELECT count(*) FROM n"
def count(run):
    try:
        run(numbers)
    except bedrockish.BedrockishError as error:
        pass
for step in range(12):
    db = bedrockish.connect({str(node.database)!r})
    run = {begins or "db.execute"}
    thread = threading.Thread(target=count, args=[run])
    thread.start()
    time.sleep(step / 1000)
    began = time.monotonic()
    child = os.fork()
    if not child:
        import signal
        signal.alarm(60)
        assert db.execute("SELECT count(*) FROM forked").value() == 2
        os._exit(0)
    waited = time.monotonic() - began
    print(os.waitpid(child, 0)[1], waited < forks.WAIT_S, flush=True)
    db.close()
    thread.join()
""",
    )
    assert told == "0 True\n" * 12


def test_fork_is_not_starved_by_threads_that_execute_statements(node: LocalNode, db: Connection) -> None:
    """If each thread took its lock again at once, the fork would give up after its longest wait."""
    told = run(
        node,
        f"""
import threading, time
is_over = False
def read(opens):
    with bedrockish.connect({str(node.database)!r}) as own:
        while not is_over:
            if opens:
                with own.transaction() as tx:
                    for _ in range(20):
                        tx.execute("SELECT v FROM forked WHERE id = 1")
            else:
                own.execute("SELECT v FROM forked WHERE id = 1")
threads = [threading.Thread(target=read, args=[number % 2]) for number in range(6)]
for thread in threads:
    thread.start()
time.sleep(0.3)
waits = []
for _ in range(9):
    began = time.monotonic()
    child = os.fork()
    if not child:
        import signal
        signal.alarm(60)
        assert db.execute("SELECT count(*) FROM forked").value() == 2
        os._exit(0)
    waits.append(time.monotonic() - began)
    assert os.waitpid(child, 0)[1] == 0
is_over = True
for thread in threads:
    thread.join()
print(sorted(waits)[4] < forks.WAIT_S)
""",
    )
    assert told == "True\n"


def test_fork_waits_for_threads_that_open_and_close_sessions(node: LocalNode, db: Connection) -> None:
    """A child that inherits a lock of SQLite from such a thread would wait for it for ever."""
    told = run(
        node,
        f"""
import threading
is_over = False
def visit():
    while not is_over:
        with bedrockish.connect({str(node.database)!r}) as own, own.transaction() as tx:
            tx.execute("SELECT v FROM forked WHERE id = 1")
threads = [threading.Thread(target=visit) for _ in range(4)]
for thread in threads:
    thread.start()
ends = []
for _ in range(60):
    child = os.fork()
    if not child:
        import faulthandler, signal
        faulthandler.dump_traceback_later(50)  # tells what a child that hangs waits for
        signal.alarm(60)
        with bedrockish.connect({str(node.database)!r}) as own:
            assert own.execute("SELECT count(*) FROM forked").value() == 2
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])
is_over = True
for thread in threads:
    thread.join()
print(set(ends))
""",
    )
    assert told == "{0}\n"


def test_session_opens_while_the_lock_of_forks_is_locked_and_no_thread_forks(node: LocalNode) -> None:
    """The handler of a signal that raises in a fork may leave the lock so."""
    with forks._fork_lock:
        began = time.monotonic()
        connect(str(node.database)).close()
        assert time.monotonic() - began < forks.WAIT_S
