"""Access to a node's file: which processes may open it, and the errors of the others."""

import errno
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from bedrockish.common import machine
from bedrockish.engine.sqlite.errors import broken, translate
from bedrockish.engine.storage import database_file
from bedrockish.engine.storage.database_file import check_version
from bedrockish.engine.storage.wal import Wal
from bedrockish.errors import ConfigError, DamagedError, NoRoomError, UnavailableError
from tests.engine.conftest import MakeNode
from tests.engine.nodes import MEMBERSHIP, Engine, Founding, TestNode

FOUNDING = Founding("A", MEMBERSHIP, "store-A")
SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, filler)"


def test_a_second_process_is_refused(make_node: MakeNode) -> None:
    node = make_node()
    program = f"""
        from bedrockish.engine.engine import Engine
        from bedrockish.errors import ConfigError
        try:
            Engine.open({str(node.path)!r}, founding=None)
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == f"{node.path} is in use by another node on this machine; stop it, or give another file\n"


def test_a_hard_link_of_a_file_in_use_is_refused(make_node: MakeNode) -> None:
    node = make_node()
    other = node.path.with_name("other.db")
    other.hardlink_to(node.path)
    with pytest.raises(ConfigError, match="under another name of the same file"):
        Engine.open(other, founding=None)
    node.engine.close()
    Engine.open(other, founding=None).close()


@pytest.mark.parametrize("alone", [("unshare", "--pid", "--fork", "--mount-proc"), ()])
def test_a_hard_link_of_a_file_in_use_is_refused_in_another_container(make_node: MakeNode, alone: tuple[str]) -> None:
    """/proc/locks lists only the locks of the own namespace, and another user's open files cannot be listed."""
    node = make_node()
    other = node.path.with_name("other.db")
    other.hardlink_to(node.path)
    hidden = "from pathlib import Path; from bedrockish.engine.storage import database_file as of"
    look = "try: of.FileLock(Path(sys.argv[1]))\nexcept Exception as error: print(error)\nelse: print('taken')"
    change = "" if alone else "of._opened_names = lambda *_: set()"  # as for the process of another user
    command = [*alone, sys.executable, "-c", f"import sys\n{hidden}\n{change}\n{look}"]
    if alone and subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a namespace of processes")
    said = subprocess.run([*command, other], capture_output=True, text=True, check=True).stdout
    assert "a process of another container or user, which may use that name, has it open; stop it" in said
    node.engine.close()
    assert subprocess.run([*command, other], capture_output=True, text=True, check=True).stdout == "taken\n"


def test_a_file_that_is_mounted_without_its_folder_is_refused(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's log would be in the container, and the last commits would be lost with the container."""
    node = make_node()
    node.engine.close()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 98:0 {node.path} {tmp_path}/a\\040b.db rw - ext4 /dev/vda rw\n")
    monkeypatch.setattr(machine, "MOUNTS", mounts)
    node.path.rename(tmp_path / "a b.db")
    with pytest.raises(ConfigError, match=r"a b\.db is a mount of its own, .* mount the folder of the database"):
        Engine.open(tmp_path / "a b.db", founding=None)
    mounts.write_text(f"36 35 98:0 / {tmp_path} rw - ext4 /dev/vda rw\n")
    Engine.open(tmp_path / "a b.db", founding=None).close()


@pytest.mark.parametrize("is_listed", [True, False])
def test_node_with_a_hard_link_starts_while_a_program_uses_its_file(make_node: MakeNode, is_listed: bool) -> None:
    """A backup has linked the file, and a program has read it by its own name since before the restart.

    On btrfs, /proc/locks has another number of the device than ``stat``.
    """
    node = make_node()
    node.path.with_name("backup.db").hardlink_to(node.path)
    read = (
        "import sys, apsw; db = apsw.Connection(sys.argv[1]); list(db.execute('SELECT 1 FROM sqlite_schema')); print()"
    )
    command = [sys.executable, "-c", f"{read}; sys.stdout.flush(); sys.stdin.read()"]
    with subprocess.Popen([*command, node.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        node.engine.close()
        look = "" if is_listed else "of.LOCKS = Path('/proc/none')"
        look = (
            f"import sys\nfrom pathlib import Path\nfrom bedrockish.engine.storage import database_file as of\n{look}"
        )
        for name, said in ((node.path, ""), (node.path.with_name("backup.db"), "under another name of the same file")):
            found = subprocess.run(
                [sys.executable, "-c", f"{look}\nof.FileLock(Path(sys.argv[1]))", name],
                capture_output=True,
                text=True,
                check=False,
            )
            assert said in found.stderr
            assert bool(found.returncode) is bool(said), found.stderr
        program.communicate()


def test_node_with_a_hard_link_starts_while_its_own_process_reads_the_file(make_node: MakeNode) -> None:
    node = make_node()
    node.path.with_name("backup.db").hardlink_to(node.path)
    with closing(apsw.Connection(str(node.path))) as program:
        program.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        node.engine.close()
        Engine.open(node.path, founding=None).close()


def test_a_file_of_another_node_is_refused(make_node: MakeNode) -> None:
    node = make_node()
    node.engine.close()

    with pytest.raises(ConfigError, match="is the file of node A, not of B"):
        Engine.open(node.path, founding=Founding("B", MEMBERSHIP, "store-B"))
    reopened = Engine.open(node.path, founding=Founding("A", MEMBERSHIP, "another"))
    assert reopened.recover().store == "store-A"
    reopened.close()


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("CREATE TRIGGER bedrockish_x AFTER INSERT ON t BEGIN SELECT 1; END", "trigger bedrockish_x on t"),
        ("CREATE TABLE bedrockish_x(a)", "table bedrockish_x"),
        ("CREATE INDEX Bedrockish_journal_place2 ON t(filler)", "index Bedrockish_journal_place2 on t"),
        ("CREATE VIEW bedrockish_schemas AS SELECT 1", "view bedrockish_schemas"),
    ],
)
def test_file_with_objects_that_no_node_makes_is_refused(make_node: MakeNode, sql: str, named: str) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.engine.flush()
    node.engine.close()
    db = apsw.Connection(str(node.path))
    db.execute(sql).fetchall()
    db.close()

    with pytest.raises(ConfigError, match=f"has objects that no node makes: {named}; another program has made them"):
        Engine.open(node.path, founding=None)


def test_unusable_files_are_refused_in_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database at all, though long enough to have a header" * 20)
    ordinary = tmp_path / "ordinary.db"
    apsw.Connection(str(ordinary)).execute("CREATE TABLE x(y)")
    virtual = tmp_path / "virtual.db"
    apsw.Connection(str(virtual)).execute("CREATE VIRTUAL TABLE words USING fts4(w)")
    circle = tmp_path / "circle.db"
    circle.symlink_to("circle.db")
    pipe = tmp_path / "pipe.db"
    os.mkfifo(pipe)
    refusals = [
        (pipe, FOUNDING, "is a device, a pipe or a socket"),
        (Path("/dev/null"), FOUNDING, "is a device, a pipe or a socket"),
        (Path("/"), FOUNDING, "is a directory"),
        (circle, FOUNDING, "its symbolic links form a circle"),
        (tmp_path / ("x" * 300), FOUNDING, "File name too long"),
        (text, FOUNDING, "is not a SQLite database"),
        (ordinary, None, "is not a node's file yet"),
        (virtual, FOUNDING, "virtual table words: the module fts4 is not replicated"),
        (tmp_path / "missing.db", None, "no such file"),
        (tmp_path / "no" / "where.db", FOUNDING, "a directory that does not exist"),
        (tmp_path, FOUNDING, "is a directory"),
        (tmp_path / "z.db", Founding("Z", MEMBERSHIP, "s"), "not among the members A, B"),
    ]
    for path, founding, words in refusals:
        with pytest.raises(ConfigError, match=words) as caught:
            Engine.open(path, founding=founding)
        assert "\n" not in str(caught.value)
        # The lock is free again.
        with pytest.raises(ConfigError, match=words):
            Engine.open(path, founding=founding)


def test_ordinary_database_can_become_a_nodes_file(tmp_path: Path) -> None:
    path = tmp_path / "ordinary.db"
    apsw.Connection(str(path)).execute("CREATE TABLE x(y); INSERT INTO x VALUES (5)")
    node = TestNode(path)

    assert node.rows("SELECT y FROM x") == [(5,)]
    node.engine.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    TestNode(path).engine.close()
    path.chmod(0o444)

    with pytest.raises(ConfigError, match="may not be written"):
        Engine.open(path, founding=FOUNDING)


def test_full_disk_is_reported(make_node: MakeNode) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.save()
    db = node.engine._db
    db.pragma("max_page_count", db.pragma("page_count") + 2)
    prepared = node.prepare("SELECT 1")
    del prepared

    with pytest.raises(UnavailableError, match="this node has no room for the statement"):
        node.prepare("INSERT INTO t(filler) VALUES (zeroblob(100000))")

    db.pragma("max_page_count", 1 << 30)
    node.run("INSERT INTO t(filler) VALUES ('x')")  # and the batch is complete
    assert node.rows("SELECT filler FROM t") == [("x",)]


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG])
def test_a_quota_is_a_full_disk_and_other_failures_are_not(number: int) -> None:
    failure = apsw.IOError("disk I/O error")
    assert isinstance(translate(failure, "", number), UnavailableError)
    assert isinstance(broken(failure, number), NoRoomError)
    for lack in (broken(failure, errno.ENOMEM), broken(apsw.NoMemError("out of memory"))):
        assert isinstance(lack, NoRoomError), "the node begins again with less memory, and blames no disk"
        assert "ulimit -v" in lack.message
    for other in (0, errno.EIO):
        assert type(translate(failure, "", other)) is type(broken(failure, other)) is DamagedError


def test_a_statement_over_the_limit_of_a_files_size_did_not_happen(
    make_node: MakeNode, limited: Callable[[int], None]
) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.engine.flush()
    node.run("INSERT INTO t(filler) VALUES ('before')")
    node.engine._db.pragma("cache_size", 10)  # so that the statement's pages go to the file at once
    limited(4 << 20)
    with pytest.raises(UnavailableError, match="this node has no room for the statement"):
        node.prepare("INSERT INTO t(filler) VALUES (zeroblob(8000000))")
    node.run("INSERT INTO t(filler) VALUES ('after')")  # and the batch is whole
    node.engine.flush()
    assert node.rows("SELECT filler FROM t") == [("before",), ("after",)]


def test_foreign_write_during_a_rollback_is_detected(
    make_node: MakeNode, limited: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.engine.flush()
    node.engine._db.pragma("cache_size", 10)
    redo = node.engine.batch.redo

    def redo_late() -> None:
        other = apsw.Connection(str(node.path))
        other.execute("CREATE TABLE intruder(x)")
        other.close()
        redo()

    monkeypatch.setattr(node.engine.batch, "redo", redo_late)
    limited(4 << 20)
    with pytest.raises(UnavailableError):
        node.prepare("INSERT INTO t(filler) VALUES (zeroblob(8000000))")
    node.run("INSERT INTO t(filler) VALUES ('after')")
    with pytest.raises(DamagedError, match="another program has written"):
        node.engine.flush()


def test_a_commit_over_the_limit_of_a_files_size_waits_for_room(
    make_node: MakeNode, limited: Callable[[int], None]
) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.engine.flush()
    node.run("INSERT INTO t(filler) VALUES (zeroblob(2000000))")
    limited(1 << 20)
    with pytest.raises(NoRoomError, match="make room"):
        node.engine.flush()


def test_an_old_sqlite_is_refused() -> None:
    check_version("3.54.0")
    check_version("3.60.0")
    with pytest.raises(ConfigError, match=r"SQLite 3\.53\.4 is too old, 3\.54\.0 is needed"):
        check_version("3.53.4")


def test_other_program_cannot_write_the_file_of_an_open_engine(node: TestNode) -> None:
    other = apsw.Connection(str(node.path))
    with pytest.raises(apsw.BusyError):
        other.execute("CREATE TABLE intruder(x)")
    other.close()


def test_foreign_write_between_two_batches_stops_the_node(node: TestNode) -> None:
    node.run(SCHEMA)
    other = apsw.Connection(str(node.path))
    node.engine._db.execute("COMMIT")  # the moment inside flush in which the lock is free
    other.execute("CREATE TABLE intruder(x)")
    other.close()
    node.engine._db.execute("BEGIN IMMEDIATE")

    with pytest.raises(DamagedError, match="another program has written"):
        node.engine.flush()


def test_node_waits_for_a_program_that_recovers_its_file(tmp_path: Path) -> None:
    TestNode(tmp_path / "a.db").engine.close()
    other = apsw.Connection(str(tmp_path / "a.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    other.execute("BEGIN EXCLUSIVE")
    released = threading.Timer(0.2, other.execute, ["COMMIT"])
    released.start()
    engine = Engine.open(tmp_path / "a.db", founding=FOUNDING)
    released.join()
    engine.close()
    other.close()


def test_closed_database_can_be_opened_again_and_leaves_no_wal(tmp_path: Path) -> None:
    for _ in range(2):
        node = TestNode(tmp_path / "a.db")
        assert isinstance(node.engine.wal, Wal)
        node.engine.close()
    assert not (tmp_path / "a.db-wal").exists()


def test_error_of_the_disk_at_the_start_advises_to_check_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    said = "disk I/O error; check the disk and start the node again"
    with pytest.raises(ConfigError, match=said), database_file._as_config_errors(tmp_path / "a.db"):
        raise apsw.IOError("disk I/O error")
