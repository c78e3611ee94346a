"""The dot-commands of the shell, with the names and the behaviour of sqlite3's."""

from collections.abc import Callable
from typing import TextIO

from bedrockish.api.requests import READ_LEVELS, check_modes
from bedrockish.cli.output import ALL_MODES, FRAMES, INSERT, PLAIN
from bedrockish.cli.safe_text import visible
from bedrockish.cli.shell.dump import dump
from bedrockish.cli.shell.session import DotCommand, QuitShell, Shell
from bedrockish.cli.shell.tables import import_file
from bedrockish.errors import UsageError
from bedrockish_journal.model.plain_names import is_users

TABLES = (
    "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND (?1 IS NULL OR name LIKE ?1) "
    f"AND {is_users()} ORDER BY name"
)
INDEXES = (
    "SELECT name FROM sqlite_schema WHERE type = 'index' AND (?1 IS NULL OR tbl_name LIKE ?1) "
    f"AND {is_users('tbl_name')} AND {is_users()} ORDER BY name"
)
SCHEMA = (
    "SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL AND (?1 IS NULL OR tbl_name LIKE ?1 OR name LIKE ?1) "
    f"AND {is_users('tbl_name')} ORDER BY tbl_name, type <> 'table', name"
)
WRAP_MAX = 100_000


def _names(sql: str) -> Callable[[Shell, list[str]], None]:
    def run(shell: Shell, words: list[str]) -> None:
        for (name,) in shell.query(sql, [words[0] if words else None]):
            shell.say(visible(str(name)) if sql is not SCHEMA else str(name))

    return run


def _mode(shell: Shell, words: list[str]) -> None:
    if not words:
        shell.say(f"mode {shell.style.mode}")
        return
    name, *rest = words
    if name == "tabs":
        name = PLAIN
    if name not in ALL_MODES:
        raise UsageError(f"there is no mode {name!r}; there is {', '.join(ALL_MODES)}")
    wrap, target = 0, "table"
    if name in FRAMES and len(rest) == 2 and rest[0] == "--wrap":
        wrap = int(_number(rest[1], 0, WRAP_MAX))
    elif name == INSERT and len(rest) == 1:
        target = rest[0]
    elif rest:
        raise UsageError(
            f".mode {name} does not take {' '.join(rest)!r}; .mode insert takes the name of a table, and "
            f"{', '.join(FRAMES)} take --wrap and a number of characters"
        )
    shell.restyle(mode=name, target=target, wrap=wrap)


def _switch(word: str) -> bool:
    if word.lower() not in ("on", "off", "yes", "no", "1", "0"):
        raise UsageError(f"write on or off, not {word!r}")
    return word.lower() in ("on", "yes", "1")


def _headers(shell: Shell, words: list[str]) -> None:
    shell.restyle(headers=_switch(words[0]))


def _null(shell: Shell, words: list[str]) -> None:
    shell.restyle(null=words[0] if words else "")


def _timer(shell: Shell, words: list[str]) -> None:
    shell.timer = _switch(words[0])


def _output(shell: Shell, words: list[str]) -> None:
    opened = _open(words[0]) if words and words[0] != "stdout" else None
    shell.close()
    shell.out = opened


def _once(shell: Shell, words: list[str]) -> None:
    opened = _open(words[0])
    shell.close()
    shell.out, shell.is_once = opened, True


def _open(path: str) -> TextIO:
    if path.startswith("|"):
        raise UsageError(f"{path}: output goes to a file here; to a program with: bedrockish sql URL 'SELECT …' | …")
    return open(path, "w", encoding="utf-8", newline="", errors="backslashreplace")


def _databases(shell: Shell, _: list[str]) -> None:
    found = shell.connection.status()
    alone = "" if found.get("mode", "serving") == "serving" else f", {found['mode']}"
    is_voter = found.get("nodes", {}).get(found["node"], {}).get("role") == "voter"
    may = "r/w" if is_voter and not alone else "r/o"
    shell.say(visible(f"main: cluster {found['cluster']} at node {found['node']}{alone} {may}"))


def _parameter(shell: Shell, words: list[str]) -> None:
    match words:
        case ["init"]:
            pass  # sqlite3 creates a table for parameters here; this shell needs none
        case ["list"]:
            for line in shell.parameters.lines():
                shell.say(line)
        case ["set", name, value]:
            shell.parameters.set(name, value)
        case ["unset", name]:
            shell.parameters.unset(name)
        case ["clear"]:
            shell.parameters.clear()
        case _:
            raise UsageError(
                "write .parameter set NAME VALUE, .parameter unset NAME, .parameter list or .parameter clear"
            )


def _number(word: str, least: float, most: float) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise UsageError(f"write a number from {least:g} to {most:g}, not {word!r}")
    return value


def _read_level(shell: Shell, words: list[str]) -> None:
    if not words:
        shell.say(shell.read or "what the URL says")
    else:
        check_modes(words[0])
        shell.read = words[0]


def _quit(_: Shell, __: list[str]) -> None:
    raise QuitShell


def _help(shell: Shell, words: list[str]) -> None:
    if not words:
        shell.say("SQL ends with a semicolon. BEGIN opens a transaction, COMMIT and ROLLBACK end it.")
    for name, command in COMMANDS.items():
        if not words or name == words[0].lstrip("."):
            shell.say(f".{name} {command.usage}".ljust(28) + " " + command.says)


COMMANDS = {
    "tables": DotCommand("[PATTERN]", "names of tables and views", _names(TABLES), most=1),
    "schema": DotCommand("[NAME]", "how tables, indexes, views and triggers were created", _names(SCHEMA), most=1),
    "indexes": DotCommand("[TABLE]", "names of indexes", _names(INDEXES), most=1),
    "mode": DotCommand("[MODE [TABLE | --wrap N]]", "how rows are printed: " + ", ".join(ALL_MODES), _mode, most=3),
    "headers": DotCommand("on|off", "names of columns before the rows", _headers, 1, 1),
    "nullvalue": DotCommand("TEXT", "what NULL is printed as", _null, most=1),
    "import": DotCommand(
        "[--csv|--tabs] [--skip N] [--again] FILE TABLE",
        "load a file of CSV, each row once, however often it is interrupted and run",
        import_file,
        2,
        6,
    ),
    "dump": DotCommand("[TABLE]...", "everything as SQL, for this shell and for sqlite3", dump, most=1_000),
    "read": DotCommand("FILE", "run a script", lambda shell, words: shell.read_file(words[0]), 1, 1),
    "output": DotCommand(
        "[FILE]", "write output to a file from now on; without FILE, to the screen again", _output, most=1
    ),
    "once": DotCommand("FILE", "write the result of the next statement to a file", _once, 1, 1),
    "parameter": DotCommand(
        "list | set NAME VALUE | unset NAME | clear",
        "the values of the parameters :name, @name, $name and ?1",
        _parameter,
        1,
        3,
    ),
    "databases": DotCommand("", "the cluster and the node, and whether it can be written to", _databases),
    "timer": DotCommand("on|off", "how long each statement took", _timer, 1, 1),
    "read-level": DotCommand("[LEVEL]", "how fresh reads must be: " + ", ".join(READ_LEVELS), _read_level, most=1),
    "help": DotCommand("[NAME]", "this", _help, most=1),
    "quit": DotCommand("", "leave; so does Ctrl-D", _quit),
}
