"""The options of the data source, checked when a query is created, before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bedrockish_journal.model.plain_names import folded
from bedrockish_journal.spark.source.plans import HIGHEST, LOWEST, NO_LIMITS, BatchLimits
from bedrockish_journal.spark.source.tables import TABLES

PARTITION_ROWS = 50_000
BEGINNING, OLDEST, NOW = "beginning", "oldest", "now"
APPLIED, SAFE = "applied", "safe"
ACCESS = ("user", "password", "ca", "cert", "key")  # as in the URL of a client
CHOICES = {
    "malformed": ("fail", "skip"),
    "copies": ("fail", "newest"),
    "starting": (BEGINNING, OLDEST, NOW),
    "until": (APPLIED, SAFE),
}  # the first is the default


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked."""

    path: str  # the journals: comma separated node files, globs, directories, and URLs of running nodes
    table: str = "commits"  # the name of the table
    rows: str | None = None  # the user's table whose changes are wanted, with typed columns, instead of ``table``
    limits: BatchLimits = NO_LIMITS  # the conditions on wanted entries and changes
    columns: tuple[str, ...] | None = None  # the columns wanted, in this order; None for all
    # Commits read by one task; None for the default, by which one task reads all of a running node.
    partition_rows: int | None = None
    skip_malformed: bool = False  # leave out entries that cannot be decoded instead of failing
    newest: bool = False  # of several copies of a node's journal, read the one that goes furthest instead of failing
    starting: str = BEGINNING  # the beginning of a new stream
    until: str = APPLIED  # the end of a stream: the last entry that the node has applied, or its safe time
    # The greatest number of commits of each node in one batch of a stream; None for no limit.
    max_commits: int | None = None
    # Credentials for running nodes: user, password, ca, cert and key, as far as they are not in the URLs.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name of the table, for errors."""
        return self.table if self.rows is None else self.rows

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "ReadOptions":
        """Return the checked options of ``spark.read`` or ``spark.readStream``.

        Raises:
            ValueError: an option is missing, unknown, or has an invalid value.
        """
        options = {name.lower(): value for name, value in given.items()}
        location, *_ = (options.pop(name, "") for name in OF_A_CATALOGUE)
        options.setdefault("path", location.removeprefix("file://").removeprefix("file:"))
        unknown = sorted(set(options) - OPTIONS)
        if unknown:
            raise ValueError(f"bedrockish has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}")
        if not options.get("path", "").strip():
            raise ValueError(
                "give the node files: .load('a.db,b.db') or .option('path', …); in SQL make a temporary view with the "
                "option path, as Spark does not hand the options of a CREATE TABLE to a source in Python"
            )
        table = options.get("table", "commits")
        if table not in TABLES:
            raise ValueError(f"there is no table {table!r}; the tables are {', '.join(TABLES)}")
        rows, columns = options.get("rows"), _names(options, "columns") or None
        for other in ("table", "tables"):
            if rows is not None and other in options:
                raise ValueError(f"the options 'rows' and {other!r} both name tables; leave one out")
        if rows == "":
            raise ValueError("the option 'rows' is empty; it is the name of a table, such as account")
        chosen = {name: _choice(options, name) for name in CHOICES}
        access = {name: options[name] for name in ACCESS if name in options}
        if "password" in access and "user" not in access:
            raise ValueError("there is a password and no user; give the option 'user' as well")
        low, high = _number(options, "clock_from", 0), _number(options, "clock_to", 0)
        leaders, tables = _names(options, "leader"), _names(options, "tables")
        if tables and "table" not in TABLES[table].columns:
            raise ValueError(f"the option 'tables' is for the table changes, and this is {table}")
        limits = BatchLimits(
            frozenset(leaders) if leaders else None,
            (LOWEST if low is None else low, HIGHEST if high is None else high),
            frozenset(map(folded, tables)) if tables else None,
        )
        return cls(
            options["path"],
            table,
            rows,
            limits,
            columns,
            _number(options, "partition_rows", 1),
            chosen["malformed"] == "skip",
            chosen["copies"] == "newest",
            chosen["starting"],
            chosen["until"],
            _number(options, "max_commits", 1),
            access,
        )


# Properties that Spark adds for a table of its catalogue (CREATE TABLE ... USING bedrockish LOCATION ...).
OF_A_CATALOGUE = ("location", "owner", "provider", "comment", "external", "is_managed_location", "collation")
_COMMON = ("path", "table", "rows", "leader", "clock_from", "clock_to", "tables", "columns")
OPTIONS = {*_COMMON, "partition_rows", "max_commits", *CHOICES, *ACCESS}


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in options.get(name, "").split(",") if word.strip())


def _choice(options: Mapping[str, str], name: str) -> str:
    choices = CHOICES[name]
    given = options.get(name, choices[0])
    if given not in choices:
        raise ValueError(f"{name} cannot be {given!r}; it is {' or '.join(map(repr, choices))}")
    return given


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not least <= int(text) < 1 << 63:
        raise ValueError(f"{name} cannot be {text!r}; it is a whole number from {least} to 2^63 - 1")
    return int(text)
