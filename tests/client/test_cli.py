"""The command line: for each error the user sees one line, and gets a status."""

import errno
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import click
import pytest
import trio
from click.testing import CliRunner, Result

from bedrockish.api.requests import Answer, Request, Token, encode_results
from bedrockish.api.requests import Result as SqlResult
from bedrockish.cli.main import COMMANDS, GROUPS, main
from bedrockish.cli.serve import read_config, run_until_signal
from bedrockish.cli.shell.script import ScriptStatement, group, items
from bedrockish.cli.status import print_status
from bedrockish.common.machine import why_refused
from bedrockish.config.config import Config, build
from bedrockish.errors import ConfigError, SqlError, UsageError
from bedrockish.node.departure import Departure
from tests.client.scripted import ScriptedNode
from tests.client.test_blocking_client import in_background
from tests.forked import program
from tools.cluster import clean_environment


def run(*args: str, stdin: str | None = None, **env: str) -> Result:
    clean = {"BEDROCKISH_URL": "", "BEDROCKISH_CONFIG": "", "BEDROCKISH_DEBUG": "", **env}
    return CliRunner().invoke(main, args, input=stdin, env=clean)


def assert_one_line(result: Result, status: int, says: str) -> None:
    assert result.exit_code == status, result.output
    assert says in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


class Table(ScriptedNode):
    """Answers each statement with one row: the statement."""

    async def submit(self, request: Request) -> Answer:
        self.requests.append(request)
        results = []
        for statement in request.statements:
            if "missing" in statement.sql:
                raise SqlError("no such table: missing", sql=statement.sql)
            rows: list[tuple[Any, ...]] = [(statement.sql, None, 1.5, b"\0")]
            results.append(SqlResult(("s", "n", "f", "b"), rows) if "SELECT" in statement.sql else SqlResult((), [], 1))
        return Answer(encode_results(results), Token({"A": 1}, 1), ("A", 1), 1)


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["stauts"], 2, "there is no command 'stauts'; did you mean 'status'?"),
        (["xyzzy"], 2, "there is no command 'xyzzy'; there is init, serve, "),
        (["bedrockish://ann:secret@h"], 2, "the URL comes after the command: bedrockish status URL"),
        (["member", "bedrockish://ann:secret@h", "add"], 2, "after the command: bedrockish member add URL"),
        (
            ["user", "bedrockish://ann:secret@h"],
            2,
            "after the command: bedrockish user COMMAND URL …; there is list, add",
        ),
        (["journal", "bedrockish://ann:secret@h", "prune"], 2, "bedrockish journal prune URL"),
        (
            ["backup", "follow", "bedrockish://h", "s3://b/x"],
            2,
            "a URL, and no path; write a directory of this machine",
        ),
        (["backup", "bedrockish://h", "s3://b/one.db"], 2, "a URL, and no path; write a directory of this machine"),
        (["restore", "--from", "s3://b/x", "--to", "new.db"], 2, "bring it here first"),
        (["status", "--jsn"], 2, "--json"),
        (["status"], 2, "BEDROCKISH_URL"),
        (["status", "localhost:1"], 2, "is not a bedrockish URL"),
        (["import", "old.db"], 2, "BEDROCKISH_URL"),
        (["import", "localhost:1", "old.db"], 2, "is not a bedrockish URL"),
        (["import", "bedrockish://127.0.0.1:1"], 2, "Missing argument 'FILE'"),
        (["clock"], 2, "BEDROCKISH_URL"),
        (["member", "remove", "C"], 2, "BEDROCKISH_URL"),
        (["status", "bedrockish://127.0.0.1:1/?connect_timeout=0.05"], 3, "at 127.0.0.1:1: Connection refused"),
        (["sql", "bedrockish://127.0.0.1:1/?connect_timeout=0.05", "SELECT 1"], 3, "no node can be reached"),
        (["sql", "localhost:7373", "SELECT 1"], 2, "write bedrockish://localhost:7373"),
        (["sql", "bedrockish://h", "-f", "no/such/file"], 1, "no/such/file: No such file"),
        (["sql", "bedrockish://h", "BEGIN; SELECT 1"], 2, "statement 1, line:1: BEGIN without COMMIT"),
        (["sql", "bedrockish://h", "COMMIT"], 2, "COMMIT without BEGIN"),
        (["serve"], 2, "node is missing"),
        (["serve", "--config", "no/such.toml"], 2, "no/such.toml: the configuration cannot be read"),
        (["serve", "--node", "A", "--database", "x", "--listen", "h:x"], 2, "--listen: 'x' in 'h:x' is not a port"),
        (["serve", "--set", "heartbeat_ms"], 2, "write KEY=VALUE"),
        (["serve", "--log-level", "loud"], 2, "loud"),
    ],
)
def test_mistakes_are_reported_by_one_line_and_a_status(args: list[str], status: int, says: str) -> None:
    done = run(*args)
    assert_one_line(done, status, says)
    assert "secret" not in done.stderr


def test_a_node_does_not_begin_with_an_empty_file_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths of a configuration are relative to its folder, not to the working directory."""
    home, elsewhere = tmp_path / "A", tmp_path / "elsewhere"
    for folder in (home / "certs", elsewhere):
        folder.mkdir(parents=True)
    (home / "A.toml").write_text('node = "A"\ndatabase = "A.db"\nlisten = "127.0.0.1:7373"\n')
    monkeypatch.chdir(elsewhere)
    assert read_config(home / "A.toml", {}).node == "A", "nothing is anywhere yet"
    (home / "A.db").touch()
    with pytest.raises(ConfigError, match=rf"A.db is in {home}, and not in {elsewhere}, where this is started"):
        read_config(home / "A.toml", {})
    (elsewhere / "A.db").touch()
    assert read_config(home / "A.toml", {}).database == "A.db"
    with (home / "A.toml").open("a") as file:
        file.write('[security]\ntls = "certs"\n')
    (home / "certs" / "ca.pem").touch()
    with pytest.raises(ConfigError, match=rf"certs/ca.pem is in {home}"):
        read_config(home / "A.toml", {})
    monkeypatch.chdir(home)
    assert read_config(Path("A.toml"), {}).security.tls == "certs"


@pytest.mark.parametrize(
    "args", [["import", "old.db"], ["import", "--add", "old.db"], ["import", "bedrockish://x:2", "old.db"]]
)
def test_the_url_comes_from_the_environment(args: list[str]) -> None:
    """The command takes a first word that is not a URL as its next argument; the file does not exist, so it calls no
    node.
    """
    assert_one_line(run(*args, BEDROCKISH_URL="bedrockish://127.0.0.1:1"), 2, "old.db: there is no such file")
    assert "--help" in run(*args, "--help", BEDROCKISH_URL="bedrockish://127.0.0.1:1").stdout


@pytest.mark.parametrize(
    "args", [["add", "B", "127.0.0.1:2"], ["address", "B", "127.0.0.1:2"], ["replace", "B", "C"], ["remove", "B"]]
)
def test_commands_of_a_group_take_the_url_from_the_environment(args: list[str]) -> None:
    url = "bedrockish://127.0.0.1:1/?connect_timeout=0.05"
    assert_one_line(run("member", *args, BEDROCKISH_URL=url), 3, "at 127.0.0.1:1: Connection refused")


def test_help_and_version_are_printed() -> None:
    assert run("--version").output.startswith("bedrockish, version ")
    assert run("--help").exit_code == 0
    for name in COMMANDS:
        if main.get_command(click.Context(main), name) is not None:
            assert run(name, "--help").exit_code == 0


@pytest.mark.parametrize("group_it", [False, True])
def test_bug_is_one_line_and_its_traceback_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch, group_it: bool) -> None:
    def broken(*_: object) -> None:
        error = ZeroDivisionError("division\nby zero")
        raise ExceptionGroup("several", [error]) if group_it else error

    monkeypatch.setattr("bedrockish.cli.status.connect", broken)
    # a group of exceptions names no line
    place = "" if group_it else f" in test_cli.py:{broken.__code__.co_firstlineno + 2}"
    assert_one_line(run("status", "bedrockish://h"), 70, f"this is a bug: ZeroDivisionError{place}: division by zero")
    assert "Traceback" in run("status", "bedrockish://h", BEDROCKISH_DEBUG="1").stderr


def test_interrupt_ends_with_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is 130 even if the interrupt caused another error, such as that of a link that the program closed."""
    for cause in (KeyboardInterrupt(), BaseExceptionGroup("", [UsageError("a link is stopping"), KeyboardInterrupt()])):
        monkeypatch.setattr("bedrockish.cli.status.connect", Mock(side_effect=cause))
        result = run("status", "bedrockish://h")
        assert (result.exit_code, result.stderr.strip()) == (130, "")


def test_status_and_nodes_print_the_answers_of_the_node() -> None:
    with in_background(ScriptedNode()) as url:
        assert json.loads(run("status", url, "--json").output)["node"] == "A"
        assert "127.0.0.1" in run("nodes", BEDROCKISH_URL=url).output
        assert "A" in run("status", url).output
    shown = io.StringIO()
    print_status({"node": "A", "certificates": {"certs/A.pem": 1953326360.0, "ca.pem": "unread"}}, shown)
    assert "certs/A.pem: until 2031-11-24, ca.pem: unread" in shown.getvalue()


def test_status_ends_with_1_while_a_member_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_up, code in ((True, 0), (False, 1)):
        node = MagicMock()
        node.__enter__().status.return_value = {"troubles": [], "nodes": {"A": {"up": True}, "B": {"up": is_up}}}
        monkeypatch.setattr("bedrockish.cli.status.connect", Mock(return_value=node))
        assert run("status", "bedrockish://h").exit_code == code
        assert run("status", "bedrockish://h", "--json").exit_code == code


def test_explain_prints_keys_and_advice() -> None:
    with in_background(ScriptedNode()) as url:
        shown = run("explain", url, "SELECT ?", "-p", "7")
        assert "reads" in shown.output
        assert "table t: 1" in shown.output
        assert json.loads(run("explain", url, "SELECT 1", "--json").output)[0]["kind"] == "read"
        assert_one_line(run("explain", url, "SELECT 1", "SELECT 2"), 2, "one text")


@pytest.mark.parametrize(
    ("mode", "printed"),
    [
        ("plain", "SELECT 'é'\tNULL\t1.5\tx'00'\n"),
        ("csv", "s,n,f,b\r\n\"SELECT 'é'\",,1.5,x'00'\r\n"),
        ("json", '[{"s":"SELECT \'é\'","n":null,"f":1.5,"b":"x\'00\'"}]\n'),
        ("line", "    s = SELECT 'é'\n    n = \n    f = 1.5\n    b = x'00'\n"),
    ],
)
def test_shell_prints_a_result_in_each_output_mode(mode: str, printed: str) -> None:
    with in_background(Table()) as url:
        result = run("sql", url, "--mode", mode, "SELECT 'é'")
    assert (result.stdout_bytes.decode(), result.exit_code) == (printed, 0)


def test_table_keeps_control_characters_out_of_the_terminal() -> None:
    with in_background(Table()) as url:
        printed = run("sql", url, "--mode", "table", "SELECT '\x1b[31m'").output
    assert "\x1b" not in printed
    assert "\\x1b[31m" in printed


SLOW = """
import sys, time
from bedrockish.cli import restore
from bedrockish.cli.main import main
def slow(*_, **__):
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("removed", flush=True)
restore.restore_files = slow
main(["restore", "--from", sys.executable, "--to", "new.db"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("background", [False, True])
def test_command_removes_its_unfinished_files_when_it_is_terminated(number: signal.Signals, background: bool) -> None:
    """Commands in the background of a script ignore Ctrl-C, so they end by SIGTERM or SIGHUP."""

    def set_signals() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a run of the tests under nohup ignores it

    running = subprocess.Popen(
        [sys.executable, "-c", SLOW], stdout=subprocess.PIPE, env=clean_environment(), preexec_fn=set_signals
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"begun\n"
    if background:
        running.send_signal(signal.SIGINT)  # has no effect
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.2)
    running.send_signal(number)
    assert running.communicate(timeout=30)[0] == b"removed\n"
    assert running.returncode == -number


WITHOUT_STREAMS = """
import os, sys
from bedrockish.cli.main import main
try:
    main(["--version"])
except SystemExit as end:
    with open(sys.argv[1], "w") as told:
        print(end.code, *(os.readlink(f"/proc/self/fd/{number}") for number in range(3)), file=told)
"""


def test_command_with_closed_standard_streams_opens_null_devices_for_them(tmp_path: Path) -> None:
    """A warning for a closed stream would go into the file that has its number, such as a backup."""
    told = tmp_path / "told"
    closing = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    subprocess.run([*closing, sys.executable, "-c", WITHOUT_STREAMS, str(told)], check=True, env=clean_environment())
    assert told.read_text() == "0 /dev/null /dev/null /dev/null\n"


def test_command_keeps_its_status_when_its_error_output_is_closed() -> None:
    """A node that must not be started again ends with 5; otherwise a supervisor that closed the pipe would get 1."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "bedrockish.cli.main", "serve", "--node", "9"]
    done = subprocess.run(command, stderr=writer, env=clean_environment(), check=False)
    os.close(writer)
    assert done.returncode == 2


def test_script_from_a_pipe_runs_blocks_as_one_transaction() -> None:
    node = Table()
    script = "-- a comment\nINSERT INTO t VALUES ('a;b');\nBEGIN;\nINSERT 2;\nSELECT 3;\nCOMMIT;\nBEGIN;COMMIT;"
    script += "SELECT 4"
    with in_background(node) as url:
        result = run("sql", url, stdin=script)
    assert [[s.sql for s in r.statements] for r in node.requests] == [
        ["INSERT INTO t VALUES ('a;b');"],
        ["INSERT 2;", "SELECT 3;"],
        ["SELECT 4"],
    ]
    assert result.output.count("\n") == 2


def test_first_error_ends_a_script_with_its_line(tmp_path: Path) -> None:
    node = Table()
    file = tmp_path / "load.sql"
    file.write_text("SELECT 1;\n\nBEGIN;\nSELECT 2;\n  SELECT\n missing;\nEND;\nSELECT 5;")
    with in_background(node) as url:
        result = run("sql", url, "-f", str(file))
    assert_one_line(result, 2, f"{file}:5: no such table: missing")
    assert len(node.requests) == 2


def test_trigger_with_semicolons_is_one_statement_of_a_script() -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;"
    assert [piece.sql for piece in items(trigger + "SELECT 3;;", "x") if isinstance(piece, ScriptStatement)] == [
        trigger,
        "SELECT 3;",
    ]


def test_begin_within_begin_is_refused() -> None:
    with pytest.raises(UsageError, match="x:2: BEGIN within the transaction that began at x:1"):
        list(group(items("BEGIN;\nBEGIN IMMEDIATE TRANSACTION;", "x")))


class Steps:
    """Takes every step of a transaction, and answers each statement with itself."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def begin(self, owner: object, op: str, request: Request) -> Answer:
        self.taken.append(op)
        results = [SqlResult(("sql",), [(statement.sql,)]) for statement in request.statements]
        return Answer(encode_results(results), Token())

    def interrupt_owner(self, _owner: object) -> None:
        """Do nothing: no transaction runs a statement."""

    def end_owner(self, owner: object) -> None:
        self.taken.append("end")


def test_help_lists_each_command_in_one_group_and_cuts_no_sentence() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    shown = CliRunner().invoke(main, ["--help"]).output
    assert "..." not in shown.partition("Start:")[2]
    for title, names in GROUPS.items():
        part = shown.partition(f"{title}:\n")[2].partition("\n\n")[0]
        assert all(re.search(rf"^  {name} ", part, re.MULTILINE) for name in names)


@pytest.mark.parametrize(
    ("name", "environment", "says"),
    [
        ("å.sqlite".encode(), {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "set PYTHONUTF8=1"),
        (b"\xe5.sqlite", {"PYTHONUTF8": "1"}, "is not UTF-8, as SQLite's paths and texts are; rename the file"),
    ],
)
def test_path_that_cannot_be_passed_to_sqlite_is_no_bug(
    tmp_path: Path, name: bytes, environment: dict[str, str], says: str
) -> None:
    place = os.fsencode(tmp_path) + b"/" + name
    Path(os.fsdecode(place)).write_bytes(b"content")
    for words in (["journal", "verify"], ["sql"], ["compact"]):
        command = [sys.executable, "-m", "bedrockish", *words, os.fsdecode(place)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
        assert (done.returncode, says in done.stderr) in ((1, True), (2, True)), done.stderr


def test_removed_current_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "A.toml").write_text('node = "A"\ndatabase = "A.sqlite"\n')
    (tmp_path / "A.sqlite").write_bytes(b"")
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from bedrockish.cli.main import main; "
    # Without -P, Python 3.13.0 fails to import its own modules there.
    command = [sys.executable, "-P", "-c", program + f"main(['serve', '--config', {str(tmp_path / 'A.toml')!r}])"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    says = "error: the current directory was removed, and a path is relative to it; change to another one\n"
    assert (done.returncode, done.stderr) == (1, says)


def test_help_lists_the_first_sentence_of_each_command() -> None:
    context = click.Context(main)
    shown = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        assert f" {name} {command.get_short_help_str(10_000)}" in shown


HELP = """
import sys
from bedrockish.cli.main import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
"""
DIAL = """
import sys
import bedrockish
try:
    bedrockish.connect("bedrockish://127.0.0.1:1/?connect_timeout=0.1")
except bedrockish.UnavailableError:
    pass
else:
    raise AssertionError("nobody listens there")
"""


@pytest.mark.parametrize(("program", "most"), [(HELP, 170), (DIAL, 230)], ids=["help", "connect"])
def test_program_that_is_run_often_imports_little(program: str, most: int) -> None:
    """Modules are counted, because seconds depend on the machine."""
    told = "\nprint(len(sys.modules), *(name for name in sys.modules if name.partition('.')[0] in TOO_MUCH))"
    too_much = "\nTOO_MUCH = {'trio', 'apsw', 'asyncio', 'rich', 'prompt_toolkit', 'cryptography', 'attr'}"
    command = [sys.executable, "-c", program + too_much + told]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=True)
    count, *imported = done.stdout.splitlines()[-1].split()
    assert not imported
    assert int(count) <= most


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_stop_a_node_gracefully(number: signal.Signals) -> None:
    left: list[str] = []

    async def node(config: Config, _departure: Departure) -> None:
        try:
            signal.raise_signal(number)
            await trio.sleep_forever()
        finally:
            left.append(config.node)

    with trio.fail_after(60):
        await run_until_signal(node, build(flags={"node": "A", "database": "x"}))
    assert left == ["A"]
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("command", [("serve",), ("join", "bedrockish://127.0.0.1:1")])
@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        (resource.RLIMIT_NOFILE, 6, r"6 files, and a node needs 64; .*ulimit -n"),
        (resource.RLIMIT_NOFILE, 32, r"32 files, and a node needs 64; .*ulimit -n"),
        (resource.RLIMIT_AS, 80 << 20, r"80 MiB of memory, and a node needs 128 MiB; .*ulimit -v"),
    ],
)
def test_too_low_file_limit_is_reported(
    tmp_path: Path, command: tuple[str, ...], limit: int, value: int, why: str
) -> None:
    (tmp_path / "A.toml").write_text('node = "A"\ndatabase = "A.sqlite"\n[peers]\nA = "127.0.0.1:1"\n')
    run = [sys.executable, "-m", "bedrockish.cli.main", *command, "--config", "A.toml"]
    done = subprocess.run(
        run,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
        preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
        timeout=60,
    )
    assert done.returncode == 2
    assert re.fullmatch(f"error: this process may (open|have) {why}.*\n", done.stderr), done.stderr
    assert not list(tmp_path.glob("A.sqlite*"))


@pytest.mark.parametrize(("database", "why"), [("pipe", "is a device, a pipe or a socket"), ("/", "is a directory")])
def test_database_path_that_is_not_a_file_is_reported_before_opening(tmp_path: Path, database: str, why: str) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    here = ["--listen", "127.0.0.1:1", "--peer", "A=127.0.0.1:1"]
    told = program("serve", "--node", "A", "--database", database, *here, cwd=tmp_path)
    assert told.returncode == 2
    assert f"{why}; give the path of a file" in told.stderr


def test_error_of_a_limit_names_its_remedy() -> None:
    expected = {
        OSError(errno.EMFILE, "Too many open files"): "ulimit -n",
        MemoryError(): "ulimit -v",
        ImportError("libcrypto.so.3: failed to map segment from shared object"): "ulimit -v",
        RuntimeError("can't start new thread"): "ulimit -u",
        OSError(errno.ENOENT, "No such file"): "",
        RuntimeError("another one"): "",
    }
    for error, remedy in expected.items():
        told = why_refused(error)
        assert (remedy in told) if remedy else not told


@pytest.mark.parametrize("waits", ["trio.run(trio.sleep_forever)", "time.sleep(60)"])
def test_sigterm_ends_a_command_after_its_cleanup(tmp_path: Path, waits: str) -> None:
    """Otherwise a backup or a restore would leave unfinished files."""
    (tmp_path / "waits.py").write_text(f"""
import pathlib, time, click, trio

@click.command()
def wait():
    made = pathlib.Path("unfinished")
    made.touch()
    try:
        print("ready", flush=True)
        {waits}
    finally:
        made.unlink()
""")
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from bedrockish.cli.main import COMMANDS, main; COMMANDS['wait'] = 'waits:wait'; main(['wait'])"
    )
    environment = clean_environment() | {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(one) for one in (*sys.path, str(tmp_path)))
    }
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, env=environment) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.terminate()
        assert running.wait(60) == -signal.SIGTERM
    assert not (tmp_path / "unfinished").exists()


def test_package_runs_as_the_program() -> None:
    command = [sys.executable, "-m", "bedrockish", "stauts"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no command 'stauts'; did you mean 'status'?" in done.stderr


def test_prune_repeats_its_order_until_each_node_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    left = {"A": [7, 5, 1], "B": [2]}

    async def everywhere(_url: str, asked: Any, only: str | None = None) -> dict[str, dict[str, Any]]:
        assert asked["do"] == "prune"
        nodes = [only] if only else [*left]
        return {
            node: {"removed": left[node].pop(0), "entries": 9, "kept": [], "more": bool(left[node])} for node in nodes
        }

    monkeypatch.setattr("bedrockish.cli.upkeep.everywhere", everywhere)
    done = run("journal", "prune", "bedrockish://h", "--older-than", "1d")
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [["A", "13", "9"], ["B", "2", "9"]]
