"""The program ``bedrockish``. Here, and only here, an error becomes one line on standard error and an exit status."""

import ast
import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from bedrockish import __version__
from bedrockish.cli import NODES
from bedrockish.cli.safe_text import visible
from bedrockish.common.machine import not_utf8, why_refused
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.errors import JournalError
from bedrockish_net.errors import NetError

DEBUG_VARIABLE = "BEDROCKISH_DEBUG"
ABOUT = "SQLite on several machines: every node accepts writes, and transactions stay serializable."
OTHERS = 0o077
WIDTH_MAX = 1_000  # characters: more than the first sentence of any help has
USAGE, UNREACHABLE, BUG, INTERRUPTED = 2, 3, 70, 130
_ENDED_BY: list[int] = []  # the signals that were taken as Ctrl-C
# SQLite's errors about the disk or a limit of the system, by name, so that apsw need not be imported.
OF_THE_SYSTEM = frozenset({"IOError", "FullError", "CantOpenError", "ReadOnlyError", "PermissionsError", "NoMemError"})

# The commands as the help lists them, each with its module and its name there. A module is imported when its command
# runs, so that the list of commands imports none of them: the audit, for example, needs Spark.
GROUPS = {
    "Start": {
        "init": "bedrockish.cli.init:init",
        "serve": "bedrockish.cli.serve:serve",
        "join": "bedrockish.cli.join:join",
    },
    "Use": {
        "sql": "bedrockish.cli.shell.command:sql",
        "explain": "bedrockish.cli.explain:explain",
        "import": "bedrockish.cli.database:import_database",
        "export": "bedrockish.cli.database:export_database",
    },
    "Operate": {
        "status": "bedrockish.cli.status:status",
        "nodes": "bedrockish.cli.status:nodes",
        "statements": "bedrockish.cli.statements:statements",
        "transactions": "bedrockish.cli.statements:transactions",
        "member": "bedrockish.cli.member:member",
        "user": "bedrockish.cli.user:user",
        "password": "bedrockish.cli.secure:password",
        "tls": "bedrockish.cli.secure:tls",
        "clock": "bedrockish.cli.upkeep:clock",
        "upgrade": "bedrockish.cli.upgrade:upgrade",
        "verify": "bedrockish.cli.verify:verify",
    },
    "Data": {
        "backup": "bedrockish.cli.backup:backup",
        "restore": "bedrockish.cli.restore:restore",
        "changes": "bedrockish.cli.changes:changes",
        "export-journal": "bedrockish.cli.export:export_journal",
        "compact": "bedrockish.cli.compact:compact_file",
    },
    "Audit": {
        "journal": "bedrockish.cli.journal:journal",
        "audit": "bedrockish.cli.audit:audit",
        "anchor": "bedrockish.cli.anchor:anchor",
    },
}
COMMANDS = {name: place for commands in GROUPS.values() for name, place in commands.items()}


class CommandGroup(click.Group):
    """The group of all commands, which shows a traceback only with BEDROCKISH_DEBUG=1."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return [name for name, place in COMMANDS.items() if find_spec(place.partition(":")[0]) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command, or None if this installation lacks it."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name == module:
                return None
            raise
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups, each with its whole first sentence."""
        known = set(self.list_commands(ctx))
        for title, commands in GROUPS.items():
            rows = [(name, _first_sentence(place)) for name, place in commands.items() if name in known]
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, or raise an error with the most similar name."""
        name = args[0] if args else ""
        if name.lower().startswith("bedrockish:"):  # there may be a password in it
            raise click.UsageError("the URL comes after the command: bedrockish status URL")
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            close = get_close_matches(name, list(COMMANDS), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "there is " + ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run the program and end with its exit status."""
        extra.pop("standalone_mode", None)
        _open_standard_streams()
        os.umask(OTHERS)  # only the owner can read the files written here
        given = sys.argv[1:] if args is None else [*args]
        if given and given[0] not in (*NODES, "sql"):  # the shell takes Ctrl-C for the end of a statement
            _take_ends_as_ctrl_c()
        try:
            status = super().main(args, prog_name or "bedrockish", standalone_mode=False, **extra)
            sys.stdout.flush()
        except BaseException as error:
            status = _report(error)
        if _ENDED_BY:
            sys.stderr.flush()
            signal.raise_signal(_ENDED_BY[0])  # ``_end`` has set SIG_DFL: the caller sees the signal
        sys.exit(status if isinstance(status, int) else 0)


def _first_sentence(place: str) -> str:
    """Return the first sentence of a command's help, read from the source of its module, which is not imported."""
    module, _, name = place.partition(":")
    spec = find_spec(module)
    assert spec is not None
    source = spec.loader.get_source(module) if isinstance(spec.loader, InspectLoader) else None
    functions = (one for one in ast.walk(ast.parse(source or "")) if isinstance(one, ast.FunctionDef))
    text = next((ast.get_docstring(one) for one in functions if one.name == name), None)
    return click.Command(name, help=text).get_short_help_str(WIDTH_MAX)


@click.group(cls=CommandGroup, help=ABOUT, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bedrockish")
def main() -> None:
    """Run the program."""


def _open_standard_streams() -> None:
    """Open the null device in place of each standard stream that is closed.

    Else a database could get the descriptor of such a stream, and a library's warnings would go into the database.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets ``number``, the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open until the end


def _take_ends_as_ctrl_c() -> None:
    """Let the first SIGTERM or SIGHUP end a command like Ctrl-C, so that it removes its unfinished files.

    A shell makes the background commands of a script ignore Ctrl-C. Such a command blocks Ctrl-C instead, because trio
    needs Python's own handler for it. Outside of the main thread, or if Ctrl-C has another handler, nothing changes.
    """
    with suppress(ValueError):  # not the main thread
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            for name in ("SIGTERM", "SIGHUP"):  # Windows lacks SIGHUP
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                    signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    _ENDED_BY.append(number)
    signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)  # trio handles SIGINT, and no other signal


def _place(error: BaseException) -> str:
    """Return the file and the line where an error was raised, for the report of a bug."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return f" in {Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}" if last is not None else ""


def _report(error: BaseException) -> int:
    """Print an error as one line and return the exit status for it."""
    found = next(_leaves(error))
    if os.environ.get(DEBUG_VARIABLE) == "1" and not isinstance(found, SystemExit | click.exceptions.Exit):
        import traceback

        traceback.print_exception(error)
    match found:
        case SystemExit():
            return found.code if isinstance(found.code, int) else 1
        case click.exceptions.Exit():
            return found.exit_code
        case KeyboardInterrupt() | click.Abort():
            click.echo(err=True)
            return INTERRUPTED
        case click.exceptions.NoArgsIsHelpError():
            click.echo(found.format_message(), err=True)
            return USAGE
        case click.ClickException():
            return _fail(found.format_message(), found.exit_code)
        case BedrockishError():
            return _fail(found.message, found.exit_code)
        case JournalError():
            return _fail(str(found), 1)
        case NetError():
            return _fail(str(found), UNREACHABLE)
        case OSError(errno=errno.EPIPE):
            # The reader of our output has closed it; the interpreter must not fail on flushing the rest either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        case _ if limit := why_refused(found):
            return _fail(limit, 1)
        case UnicodeEncodeError():
            return _fail(not_utf8(found), 1)
        case FileNotFoundError(filename=None) if not _has_directory():
            return _fail("the current directory was removed, and a path is relative to it; change to another one", 1)
        case OSError():
            where = f"{found.filename}: " if found.filename is not None else ""
            return _fail(f"{where}{found.strerror or found}", 1)
        case Exception() if type(found).__module__ == "apsw" and type(found).__name__ in OF_THE_SYSTEM:
            return _fail(f"SQLite cannot read or write a file: {found}; check the disk, quotas and 'ulimit -f'", 1)
        case _:
            text = f"this is a bug: {type(found).__name__}{_place(found)}: {found}; set {DEBUG_VARIABLE}=1 to see more"
            return _fail(text, BUG)


def _has_directory() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group: first Ctrl-C, which causes others, then errors that a person can act on."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    found = [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    known = (BedrockishError, JournalError, NetError, OSError, click.ClickException)
    order = (KeyboardInterrupt, known)
    yield from sorted(found, key=lambda leaf: [not isinstance(leaf, kinds) for kinds in order])


def _fail(message: str, status: int) -> int:
    with suppress(OSError):  # a supervisor may have closed standard error, and still learns the status
        click.echo("error: " + visible(" ".join(message.split())), err=True)  # the message may quote data
    return status


if __name__ == "__main__":
    main()
