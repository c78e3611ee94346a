"""``bedrockish.node``: a real node that lives as long as the program wants it."""

import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import assert_type

import pytest

import bedrockish
from bedrockish import embedded
from bedrockish.embedded import Node, node
from bedrockish.errors import ConfigError, UnavailableError
from tools.cluster import clean_environment, free_ports

pytest_plugins = ["bedrockish.testing"]


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_temporary_node_serves_and_leaves_nothing() -> None:
    with bedrockish.node() as running:
        assert isinstance(assert_type(running, Node), Node)  # the first is for type checkers
        with running.connect() as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
            db.execute("INSERT INTO t VALUES (1, 'one')")
            assert db.read_here("SELECT a FROM t", None, "session") is not None
        with bedrockish.connect(running.url) as db:
            assert db.execute("SELECT a FROM t").value() == "one"
        folder, process = running.path.parent, running.process
        assert folder.exists()
    assert not folder.exists()
    assert not is_alive(process)
    running.stop()


def test_pytest_fixture_provides_a_running_node(bedrockish_node: Node) -> None:
    with bedrockish_node.connect() as db:
        assert db.execute("SELECT 1").value() == 1


def test_node_with_a_configuration_keeps_its_file(tmp_path: Path) -> None:
    config = tmp_path / "A.toml"
    (port,) = free_ports(1)
    where = f'"127.0.0.1:{port}"'
    text = f'node = "A"\r\ndatabase = "A.sqlite"\r\nlisten = {where}\r\n\r\n[peers]\r\nA = {where}\r\n'
    config.write_text(text, encoding="utf-8-sig")  # as an editor of Windows writes it
    with node(config) as running, running.connect() as db:
        db.execute("CREATE TABLE t(a)")
        db.execute("INSERT INTO t VALUES (7)")
    with node(config) as running, running.connect() as db:
        assert db.execute("SELECT a FROM t").value() == 7
    with pytest.raises(UnavailableError):
        bedrockish.connect(tmp_path / "A.sqlite")


def test_temporary_node_ends_and_removes_its_files_when_its_program_is_killed() -> None:
    """The node ends with the pipe from its program."""
    code = "import bedrockish, time; n = bedrockish.node(); print(n.process, n.path.parent, flush=True); time.sleep(60)"
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=clean_environment())
    assert program.stdout is not None
    process, folder = program.stdout.readline().decode().split()
    assert is_alive(int(process))
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    until = time.monotonic() + 60
    while is_alive(int(process)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(int(process))
    assert not Path(folder).exists()


def test_forked_process_leaves_the_node_to_its_program() -> None:
    """A forked process ends before the program, with its functions of ``atexit``; another one outlives the program."""
    code = """
import bedrockish, os, sys, time
n = bedrockish.node()
if not os.fork():
    n.stop()
    sys.exit()
os.wait()
print(n.connect().execute("SELECT 7").value(), n.process, n.path.parent.exists(), flush=True)
if not os.fork():
    os.close(1)
    time.sleep(60)
"""
    done = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0)
    assert done.stdout is not None
    try:
        found, process, exists = done.stdout.read().split()
        done.wait()
        assert (found, exists) == (b"7", b"True")
        assert not is_alive(int(process))
    finally:
        done.stdout.close()
        os.killpg(done.pid, signal.SIGKILL)


def test_node_imports_the_modules_of_its_program(tmp_path: Path) -> None:
    """The node begins in another directory, and without what the program has added to its path."""
    (tmp_path / "here").symlink_to(Path(bedrockish.__file__).parent.parent)
    code = "import sys; sys.path[:0] = ['here', 'here/journal', 'here/net', *{}]; import bedrockish\n"
    code += "with bedrockish.node() as n: print(n.connect().execute('SELECT 7').value(), bedrockish.__file__)"
    others = [path for path in sys.path if path.endswith("site-packages")]
    without_packages = str(Path(sys.base_prefix) / "bin" / "python3")
    command = [without_packages, "-c", code.format(others)]
    environment = clean_environment()
    environment.pop("PYTHONPATH", None)
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=60)
    assert told.stdout.split()[0] == "7", told.stderr


def test_node_imports_no_modules_from_the_folder_of_its_configuration(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "A.toml").write_text(f'node = "A"\ndatabase = "A.sqlite"\nlisten = "127.0.0.1:{port}"\n')
    (tmp_path / "click.py").write_text("raise ImportError('a file among the data')\n")
    with node(tmp_path / "A.toml") as made, made.connect() as db:
        assert db.execute("SELECT 7").value() == 7


def test_node_refuses_a_file_whose_name_is_too_long_for_its_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * 100)  # a short path may end with a longer name
    folder.mkdir()
    for length in (75, 76):
        (folder / "A.toml").write_text(
            f'node = "A"\ndatabase = "{"n" * length}"\nlisten = "{embedded._free_address()}"\n'
        )
        if length == 75:
            with node(folder / "A.toml") as made, made.connect() as db:
                assert db.execute("SELECT 7").value() == 7
        else:
            with pytest.raises(ConfigError, match="a file whose name has at most 75 bytes; shorten it"):
                node(folder / "A.toml")


def test_program_without_python_starts_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen program names itself as the interpreter: it would start itself again and again."""
    with monkeypatch.context() as changed:
        changed.setattr(sys, "frozen", True, raising=False)
        with pytest.raises(ConfigError, match=r"a node needs Python, and this program is .*; start the node by"):
            node()
    monkeypatch.setattr(sys, "executable", "/usr/bin/false")  # a program in C that embeds Python, such as uWSGI
    with node() as made, made.connect() as db:
        assert db.execute("SELECT 7").value() == 7
    monkeypatch.setattr(sys, "executable", None)
    monkeypatch.setattr(sys, "exec_prefix", "/no/such")
    with pytest.raises(ConfigError, match="this program is of another kind"):
        node()


def test_program_whose_folder_was_removed_starts_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    tmp_path.rmdir()
    with node() as made:
        with made.connect() as db:
            assert db.execute("SELECT 7").value() == 7
        with pytest.raises(ConfigError, match=r"A\.sqlite is relative to a folder that was removed; give an absolute"):
            bedrockish.connect("A.sqlite")
    with pytest.raises(ConfigError, match=r"A\.toml is relative to a folder that was removed; give an absolute path"):
        node("A.toml")
    monkeypatch.undo()


def test_temporary_node_takes_the_loopback_address_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"127\.0\.0\.1:\d+", embedded._free_address())
    bind = socket.socket.bind

    def without_ipv4(one: socket.socket, where: tuple[str, int]) -> None:
        bind(one, where if ":" in where[0] else ("192.0.2.1", 0))  # reserved for documents

    monkeypatch.setattr(socket.socket, "bind", without_ipv4)
    assert re.fullmatch(r"\[::1\]:\d+", embedded._free_address())


def test_node_that_cannot_be_started_leaves_no_folder_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 3, before[1]))
    try:
        with suppress(OSError):
            while True:  # the limit is on the number of a descriptor, so the free numbers below it have to be taken
                held.append(os.dup(0))
        for descriptor in held[-2:]:
            os.close(descriptor)
        with pytest.raises(ConfigError, match=r"a node cannot be started: .*Too many open files; .*ulimit -n"):
            node()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in held[:-2]:
            os.close(descriptor)
    assert not [*tmp_path.iterdir()]
    (tmp_path / "A.toml").write_text('node = "A"\ndatabase = "A.sqlite"\n')
    (tmp_path / "A.log").mkdir()
    with pytest.raises(ConfigError, match=r"A\.log: Is a directory; give the node a folder that this user may write"):
        node(tmp_path / "A.toml")


def test_unusable_configuration_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*bedrockish init"):
        node(tmp_path / "none.toml")
    with closing(sqlite3.connect(tmp_path / "app.sqlite")) as plain:
        plain.execute("CREATE TABLE t(x)")
    with pytest.raises(ConfigError, match="a database of SQLite, not a configuration"):
        node(tmp_path / "app.sqlite")
    (tmp_path / "A.toml").write_text("node = ")
    with pytest.raises(ConfigError, match="NUL character"):
        node("a\0.toml")
    with pytest.raises(ConfigError, match="not TOML"):
        node(tmp_path / "A.toml")
    (tmp_path / "A.toml").write_text('node = "A"')
    with pytest.raises(ConfigError, match="names no database"):
        node(tmp_path / "A.toml")
    (tmp_path / "A.toml").write_text('node = "A"\ndatabase = "A.sqlite"\nlisten = "nowhere"\n')
    with pytest.raises(ConfigError, match="has ended at its start"):
        node(tmp_path / "A.toml")
