"""A node's configuration: a TOML file, the environment and flags become one frozen ``Config``, or a ``ConfigError``.

Flags beat the environment, the environment beats the file. Pure: the caller reads the file and the environment. A new
key is a new field of one of the classes in ``SECTIONS``: name, type, default, section and least value follow from it.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from bedrockish.api.url import DEFAULT_PORT, Address, check_path, parse_address, suggest
from bedrockish.common.machine import memory_limit
from bedrockish.config.security import Security, Users, read_users
from bedrockish.core.state.membership import NAME
from bedrockish.core.state.settings import BELOW, FIXED, Settings
from bedrockish.errors import ConfigError
from bedrockish_net.local_socket import is_loopback

LEVELS = ("debug", "info", "warning", "error")
PREFIX = "BEDROCKISH_"
OTHER_VARIABLES = frozenset({"URL", "DEBUG", "CONFIG", "HISTORY", "PASSWORD"})  # other modules read these variables
NUMBER_MAX = 1 << 40
PROGRAM_BYTES = 256 << 20  # memory of a node beyond ``memory_max``, at least
ANY = ("0.0.0.0", "::")  # wildcard addresses, which no client can dial
SHOWN_MAX = 200  # characters of a wrong value in an error's text
LEAST = "least"  # metadata of a field: the smallest number that its key takes; by default 1
OFF_AT_0 = {LEAST: 0}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a node."""

    # Bytes that all requests, their results and waiting messages may take together; beyond that the newest request
    # is refused.
    memory_max: int = 1 << 30
    result_bytes_max: int = 32 << 20  # size of all results of one command together, in bytes
    changes_bytes_max: int = 32 << 20  # size of all rows that one command changes, before and after, in bytes
    statement_ms_max: int = 30_000  # how long one statement may run, in milliseconds
    # How long a request may run in the node's loop before it is run again in a worker, in milliseconds.
    loop_ms_max: int = 10
    # How many requests run in background workers at the same time, each in a thread; others wait.
    workers_max: int = 4
    connections_max: int = 2_000  # links of clients that are open at the same time
    connections_per_address_max: int = 1_000  # links of clients that may be open from one address
    in_flight_max: int = 128  # calls of one client that run at the same time; further ones are not read yet
    open_transactions_max: int = 500  # interactive transactions that are open at the same time
    # How long an interactive transaction may be idle before it is rolled back, in milliseconds; at most the conflict
    # window.
    idle_transaction_ms: int = 60_000
    temporary_max: int = 16  # sessions with TEMP objects at the same time; one link has at most a quarter of them
    temporary_bytes_max: int = 256 << 20  # size of the TEMP tables of one session, in bytes
    idle_temporary_ms: int = 3_600_000  # how long TEMP objects are kept between two uses, in milliseconds
    streams_max: int = 64  # streamed results that are open at the same time
    idle_stream_ms: int = 60_000  # how long a streamed result may stay unread before it is ended, in milliseconds
    # How long a streamed result may be read, in milliseconds; the write-ahead log cannot restart during that time.
    stream_ms_max: int = 600_000


@dataclass(frozen=True, slots=True)
class Log:
    """The node's log on standard error."""

    level: str = "info"  # the least important kind of line that is written: debug, info, warning or error
    json: bool = False  # write each line as a JSON object
    # A request that takes at least this long, in milliseconds from arrival to answer, is logged; 0: no request.
    slow_ms: int = field(default=1_000, metadata=OFF_AT_0)


@dataclass(frozen=True, slots=True)
class ClockConfig:
    """How the node's clock uses the machine's wall clock."""

    # Added to the machine's wall clock, in milliseconds; to try out the effects of a wrong clock.
    wall_offset_ms: int = field(default=0, metadata={LEAST: -NUMBER_MAX})


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long the journal is kept, and how large it may become."""

    # Whether the node removes the beginning of its journal by itself, as far as no peer or reader needs it.
    journal_prune: bool = True
    journal_keep_minutes: int = 7 * 24 * 60  # how old an entry may become, in minutes by the cluster's clock
    journal_keep_mb: int = 1_000  # how large the journal may become, in millions of bytes, before its oldest entries go


@dataclass(frozen=True, slots=True)
class Repair:
    """How a node finds damaged tables, and whether it repairs them by itself."""

    # How fast a node compares its tables with those of the other nodes in the background, and looks its rows up in
    # their indexes; 0: it does neither.
    scrub_rows_per_second: int = field(default=500, metadata=OFF_AT_0)
    # Whether a node with damaged tables fills itself again as soon as the other nodes confirm that only its tables
    # differ; if not, it waits for 'bedrockish member repair'.
    repair_automatic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of a node."""

    node: str  # name of this node: a letter, then up to 15 letters, digits or _
    database: str  # path of the database file; it is created if it does not exist
    listen: Address  # the address to which peers and clients connect, host:port. Port 0 takes a free one.
    cluster: str = "bedrockish"  # name of the cluster; nodes of different clusters refuse each other
    peers: Mapping[str, Address]  # the founding members and their addresses, this node included
    http: Address | None = None  # the address at which HTTP is served, host:port; None: HTTP is not served
    http_token: str = field(default="", repr=False)  # the bearer token that a caller must send; empty: no token
    # Names of users and the hashes of their passwords; empty: no login is required.
    users: Users = field(default_factory=dict, repr=False)
    # Python modules with functions and collations for SQLite; the same at all nodes.
    plugins: tuple[str, ...] = ()
    timings: Settings = field(default_factory=Settings)  # durations in milliseconds
    limits: Bounds = field(default_factory=Bounds)  # the limits of the node
    log: Log = field(default_factory=Log)  # the log
    security: Security = field(default_factory=Security)  # TLS and logins
    clock: ClockConfig = field(default_factory=ClockConfig)  # how the clock uses the machine's wall clock
    journal: Keeping = field(default_factory=Keeping)  # how long the journal is kept
    repair: Repair = field(default_factory=Repair)  # detection and repair of damaged tables


_SECTIONS = (Settings, Bounds, Log, Security, ClockConfig, Keeping, Repair)
SECTIONS: Mapping[str, type] = dict(
    zip(("timings", "limits", "log", "security", "clock", "journal", "repair"), _SECTIONS, strict=True)
)
OPTIONS = {key: key for key in ("node", "database", "listen", "cluster", "http")} | {"peers": "peer"}
"""The keys that have an option of their own in 'bedrockish serve', with its name; all others are given by --set."""
TOP = ("node", "database", "listen", "cluster", "http", "http_token", "users", "plugins", "peers")


def keys() -> dict[str, str]:
    """Return every key with its section ("" for the top), in the order of the documentation."""
    found = dict.fromkeys(TOP, "")
    for section, cls in SECTIONS.items():
        found.update({one.name: section for one in dataclasses.fields(cls) if one.name not in FIXED})
    return found


@dataclass(frozen=True, slots=True)
class _Given:
    """The value of a key, and the place where it was given."""

    value: object
    where: str  # the place, with which an error text begins
    is_text: bool  # from a flag or the environment: still to be read as a number or truth value


def build(
    *,
    text: str | None = None,  # contents of the TOML file; None if it is missing
    file: str = "bedrockish.toml",  # the file's name, for error texts
    # All environment variables; only names that begin with BEDROCKISH_ are used.
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,  # key -> text, from the command line
) -> Config:
    """Build a configuration from its sources.

    Raises:
        ConfigError: a key is unknown or missing, or a value is wrong.
    """
    given: dict[str, _Given] = {}
    if text is not None:
        given.update(_from_file(text, file))
    given.update(_from_environment(environment or {}))
    for key, value in (flags or {}).items():
        if key not in keys():
            raise ConfigError(f"--set {key}: unknown key {key!r}; {_suggest(key)}")
        given[key] = _Given(value, f"--{OPTIONS[key]}" if key in OPTIONS else f"--set {key}", True)
    node = _name(_required(given, "node", "a name such as A"))
    database = _required(given, "database", "the path of a file, such as data/A.db")
    if not isinstance(database.value, str) or not database.value:
        raise ConfigError(f"{database.where}: {_shown(database.value)} is not a path; write one in quotes")
    check_path(database.value, database.where)
    listen_given = given.get("listen", _Given(f"127.0.0.1:{DEFAULT_PORT}", "listen", True))
    listen = _address(listen_given, any_port=True)
    sections = {name: _section(name, cls, given) for name, cls in SECTIONS.items()}
    _check_together(sections["timings"], sections["log"], given)
    config = Config(
        node=node,
        database=database.value,
        listen=listen,
        cluster=_name(given["cluster"]) if "cluster" in given else "bedrockish",
        peers=_peers(given.get("peers"), node, listen),
        http=_address(given["http"], any_port=True) if "http" in given else None,
        http_token=_http_token(given["http_token"]) if "http_token" in given else "",
        users=read_users(given["users"].value, given["users"].where) if "users" in given else {},
        plugins=_plugins(given["plugins"]) if "plugins" in given else (),
        **sections,
    )
    check_security(config)
    return config


# --- where values come from ---


def _from_file(text: str, file: str) -> dict[str, _Given]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        is_twice = "overwrite" in str(error) or "twice" in str(error)
        advice = "write each key and section once" if is_twice else "a text value needs quotes"
        raise ConfigError(f"{file}: this is not TOML: {error}; {advice}", file=file) from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(
            f"{file}: it cannot be read, because a number in it has thousands of digits or a list hundreds of levels; "
            "no key takes such a value",
            file=file,
        ) from error
    found: dict[str, _Given] = {}
    known = keys()
    for name, value in tables.items():
        if name in SECTIONS:
            if not isinstance(value, dict):
                raise ConfigError(f"{file}: {name} is a section; write [{name}] and its keys below it", file=file)
            for key, inner in value.items():
                where = f"{file}: {name}.{key}"
                if known.get(key) != name:
                    raise ConfigError(f"{where}: unknown key; {_suggest(key, name)}", file=file, key=key)
                found[key] = _Given(inner, where, False)
        elif known.get(name) == "":
            found[name] = _Given(value, f"{file}: {name}", False)
        else:
            raise ConfigError(f"{file}: {name}: unknown key; {_suggest(name)}", file=file, key=name)
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable.removeprefix(PREFIX) in OTHER_VARIABLES:
            continue
        key = variable.removeprefix(PREFIX).lower()
        if key in keys():
            found[key] = _Given(value, f"environment variable {variable}", True)
        elif close := get_close_matches(key, list(keys()), n=1, cutoff=0.85):
            # Other variables may belong to other programs: a container platform makes up such names for services.
            raise ConfigError(f"environment variable {variable}: did you mean {PREFIX}{close[0].upper()}?", key=key)
    return found


# Settings that only earlier releases had. For them, the suggestion of a similar name would be wrong.
REMOVED = frozenset({"command_ms_max", "enable_cluster_clock", "scrub_minutes", "traces"})


def _suggest(key: str, section: str | None = None) -> str:
    if key in REMOVED:
        return "releases before 0.3 had it; remove the line"
    known = keys()
    here = [name for name, place in known.items() if section is None or place == section]
    home = known.get(key)
    if home is not None:
        return f"it belongs into [{home}]" if home else "it belongs to the top of the file, before the first section"
    return suggest(key, here)


# --- how values are read ---


def _required(given: Mapping[str, _Given], key: str, example: str) -> _Given:
    if key not in given:
        raise ConfigError(
            f"{key} is missing; give {example} as {key} in the file, as --{key} or as {PREFIX}{key.upper()}", key=key
        )
    return given[key]


def _shown(value: object) -> str:
    """Return a value for an error's text, cut off if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes out no integer of more than 4,300 digits
        return "the value, which has an integer of thousands of digits,"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _name(given: _Given) -> str:
    if not isinstance(given.value, str) or not NAME.fullmatch(given.value):
        raise ConfigError(
            f"{given.where}: {_shown(given.value)} is not a name; write a letter and then up to 15 letters, digits or _"
        )
    return given.value


def _address(given: _Given, *, any_port: bool = False) -> Address:
    if not isinstance(given.value, str):
        raise ConfigError(f'{given.where}: {_shown(given.value)} is not an address; write "localhost:{DEFAULT_PORT}"')
    return parse_address(given.value, where=given.where, any_port=any_port)


def _http_token(given: _Given) -> str:
    token = given.value
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{1,1000}", token):
        raise ConfigError(
            f"{given.where}: this is not a token; write up to 1000 visible ASCII characters, without spaces"
        )
    return token


def _plugins(given: _Given) -> tuple[str, ...]:
    names = given.value
    if given.is_text:
        names = [part.strip() for part in str(names).split(",") if part.strip()]
    good = isinstance(names, list) and all(
        isinstance(one, str) and all(word.isidentifier() for word in one.split(".")) for one in names
    )
    if not good or not isinstance(names, list):
        raise ConfigError(f'{given.where}: {_shown(names)} should be a list of modules, such as ["words"]')
    return tuple(dict.fromkeys(names))


def _scalar(given: _Given, of: "dataclasses.Field[Any]") -> Any:
    value, default = given.value, of.default
    if isinstance(default, bool):
        if given.is_text and isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "yes", "no"):
            return value.lower() in ("true", "1", "yes")
        if not isinstance(value, bool):
            raise ConfigError(f"{given.where}: {_shown(value)} is neither true nor false; write one of the two")
        return value
    if isinstance(default, int):
        least = of.metadata.get(LEAST, 1)
        if given.is_text and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}(_[0-9]{1,20}){0,20}", value):
            value = int(value)
        if type(value) is not int or not least <= value < NUMBER_MAX:
            raise ConfigError(
                f"{given.where}: {_shown(value)} is not a whole number from {least} to {NUMBER_MAX - 1}; write one, "
                f"such as {default}"
            )
        return value
    assert isinstance(default, str)
    if not isinstance(value, str):
        raise ConfigError(f'{given.where}: {_shown(value)} is not a text; write it in quotes, such as "{default}"')
    return check_path(value, given.where)  # every key whose value is a text is a path, except ``level``


def _section(name: str, cls: type, given: Mapping[str, _Given]) -> Any:
    values = {}
    for one in dataclasses.fields(cls):
        if one.name in given and keys()[one.name] == name:
            values[one.name] = _scalar(given[one.name], one)
    return cls(**values)


def _peers(given: _Given | None, node: str, listen: Address) -> dict[str, Address]:
    """Return the founding members, this node among them."""
    found: dict[str, Address] = {}
    pairs: dict[str, object] = {}
    if given is not None and given.is_text:
        for part in filter(None, (part.strip() for part in str(given.value).split(","))):
            name, equals, written = part.partition("=")
            if not equals or name.strip() in pairs:
                raise ConfigError(
                    f"{given.where}: {_shown(part)} should be NODE=host:port, each node once, separated by commas"
                )
            pairs[name.strip()] = written
    elif given is not None:
        if not isinstance(given.value, dict):
            raise ConfigError(f'{given.where}: write a section [peers] with a line such as B = "host:{DEFAULT_PORT}"')
        pairs = given.value
    for name, address in pairs.items():
        assert given is not None
        where = f"{given.where}.{name}"
        found[_name(_Given(name, where, given.is_text))] = _address(_Given(address, where, given.is_text))
    others = {name: address for name, address in found.items() if name != node}
    if others and node not in found and (listen.host in ANY or listen.port == 0):
        raise ConfigError(
            f"peers: the others cannot reach {node} at {listen}; add {node} to peers with the address that they see"
        )
    found.setdefault(node, listen)
    taken: dict[Address, str] = {}
    for name, place in found.items():
        if place in taken and place.port:
            raise ConfigError(f"peers: {taken[place]} and {name} have the same address {place}; give each its own")
        taken[place] = name
    return dict(sorted(found.items()))


def _check_together(timings: Settings, log: Log, given: Mapping[str, _Given]) -> None:
    """Check the log level, and the keys that depend on each other."""

    def where(key: str) -> str:
        return given[key].where if key in given else key

    if log.level not in LEVELS:
        raise ConfigError(f"{where('level')}: {_shown(log.level)} is not a log level; {suggest(log.level, LEVELS)}")
    for less, more in BELOW:
        low, high = getattr(timings, less), getattr(timings, more)
        if low > high or (less == "heartbeat_ms" and low == high):
            first = where(less if less in given else more)
            raise ConfigError(
                f"{first}: {less} ({low}) must be below {more} ({high}); lower the one or raise the other"
            )


# --- access from other machines ---


def check_security(config: Config) -> None:
    """Check that a node that other machines can reach has TLS, and requires a login for HTTP.

    An unprotected database on an open port should need an explicit decision. Clear text between machines is refused,
    because an eavesdropper can read and replay it.

    Raises:
        ConfigError: the node lacks TLS or logins, or the configuration contradicts itself.
    """
    security = config.security
    files = {name: getattr(security, name) for name in ("tls_ca", "tls_certificate", "tls_key")}
    if any(files.values()) and not all(files.values()) and not security.tls:
        missing = " and ".join(name for name, path in files.items() if not path)
        raise ConfigError(f"security: {missing} is missing; TLS needs all three, see 'bedrockish tls'")
    if security.tls_revoked and not security.encrypts:
        raise ConfigError("security: tls_revoked lists revoked certificates, but there is no TLS; set tls")
    if not security.encrypts:
        _check_clear(config)
    is_open = not config.users and not config.http_token
    if config.http is not None and not is_loopback(config.http.host) and is_open and not security.insecure:
        raise ConfigError(
            f"http: {config.http} can be reached from other machines, and requires no login (add users or "
            "http_token); see docs/security.md, or set insecure = true in [security] where only trusted clients "
            "reach the port"
        )


def _check_clear(config: Config) -> None:
    """Check a node without TLS: all of its traffic must stay on the machine."""
    outside = {"listen": config.listen, **{f"peers.{node}": address for node, address in config.peers.items()}}
    found = next((where for where, address in outside.items() if not is_loopback(address.host)), "")
    if found:
        hosts = {node: address.host for node, address in sorted(config.peers.items())}
        places = " ".join(f"{node}={'HOST' if host in ANY else host}" for node, host in hosts.items())
        raise ConfigError(
            f"{found}: {outside[found]} is reached from other machines, which takes TLS: run 'bedrockish tls certs "
            f"{places}' once, bring certs/ca.pem, certs/{config.node}.pem and certs/{config.node}-key.pem to this "
            "node, and start it with 'bedrockish serve --set tls=certs', or with tls = \"certs\" in [security]; see "
            "docs/security.md"
        )
    if config.http is not None and not is_loopback(config.http.host) and (config.users or config.http_token):
        raise ConfigError(
            f"http: {config.http} can be reached from other machines, and without TLS passwords would travel in clear "
            "text; set tls in [security], see docs/security.md"
        )


def warnings(config: Config) -> list[str]:
    """Return warnings for the operator about an allowed configuration."""
    found = []
    if config.limits.memory_max + PROGRAM_BYTES > (most := memory_limit()):
        found.append(
            f"this process may take {most >> 20} MiB of memory, and ends if it needs more; memory_max, "
            f"{config.limits.memory_max >> 20} MiB, bounds only what clients cause: set it to "
            f"{max(most - PROGRAM_BYTES, most // 4) >> 20} MiB, or raise the limit (ulimit -v, MemoryMax)"
        )
    is_open = not config.users and not config.http_token
    if config.http is not None and not is_loopback(config.http.host) and is_open:
        found.append(
            "insecure is set: every program that reaches the port of HTTP may be able to read and change everything"
        )
    return found
