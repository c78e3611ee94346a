"""Checks whether a user's roles, which the membership has, permit the effects that SQLite reports for a statement.

All users share a compiled statement, so the right to run it is checked at each execution. A revoked right ends at once,
and a statement that was compiled for one user gives no rights to another user.
"""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Protocol

from bedrockish.access_sets.definitions import folded
from bedrockish.errors import ForbiddenError
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.tokenizer import NotTokensError, tokens, with_queries
from bedrockish_journal.model.membership import ADMIN, OWNER, READER, ROLES, WRITER, UserSaid
from bedrockish_journal.model.value import value
from bedrockish_journal.storage.packing import UNPACKED

NOBODY = -1  # the role of a user that the cluster does not know
TOKEN = "(http_token)"  # the name of every bearer of a node's token; no user can have this name
LOCAL = "(local)"  # the name of a program that may open the node's file, and so may do everything
CERTIFIED = "client:"  # prefix of the name of a user with a certificate
KNOWN_MAX = 1_000
JOURNAL, META = "bedrockish_journal", "bedrockish_meta"
OPEN_JOURNAL, OPEN_META = "bedrockish_open_journal", "bedrockish_open_meta"
SECRETS = frozenset({(JOURNAL, "body"), (META, "value")})  # columns that contain the hashes of passwords
# For users who are not admins: the queries, without hashes, that replace the tables with secrets.
_OPENED = {
    JOURNAL: f"""{OPEN_JOURNAL} AS NOT MATERIALIZED (SELECT seq, leader, tick, clock, origin, command, kind, repeat,
  applied_ms, {UNPACKED["label"]} AS label,
  CASE kind WHEN 'members' THEN bedrockish_without_secrets(body) ELSE {UNPACKED["body"]} END AS body,
  {UNPACKED["prev"]} AS prev, {UNPACKED["hash"]} AS hash FROM main.{JOURNAL})""",
    META: f"""{OPEN_META} AS NOT MATERIALIZED (SELECT key, value FROM main.{META}
  WHERE key IN ('safe', 'node') OR (key >= 'void:' AND key < 'void;'))""",
}
_OPEN_NAMES = {JOURNAL: OPEN_JOURNAL, META: OPEN_META}
_NO_TABLES: Mapping[str, int] = {}
# Every user may read the catalogue, and call the functions of JSON, whose results depend on their arguments alone.
ANYBODYS = frozenset(
    {"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema", "json_each", "json_tree"}
)
_DOES = {READER: "reads", WRITER: "changes rows", OWNER: "changes the schema", ADMIN: "reads secrets"}


class StatementEffects(Protocol):
    """The effects of a compiled statement, for which its user needs rights."""

    sql: str
    required_role: int
    reads: frozenset[str]
    writes: frozenset[str]


@value
class Rights:
    """The rights of one user."""

    user: str
    # ``NOBODY``, 0 for a user without a role, or one of ``READER`` to ``ADMIN``; each includes the lower ones.
    role: int
    tables: Mapping[str, int] = field(default_factory=dict)  # roles for single tables, by their folded names

    def check(self, piece: StatementEffects, views: Collection[str] = ()) -> None:
        """Make sure that the user may run a statement.

        Args:
            views: folded names of the views. A user needs rights to the tables behind a view, not to the view itself.

        Raises:
            ForbiddenError: the user may not run it.
        """
        if piece.required_role > self.role:
            self._check_tables(piece, views)

    def _check_tables(self, piece: StatementEffects, views: Collection[str]) -> None:
        """Make sure that the roles for single tables cover all tables touched, also by views, triggers and keys."""
        if not self.tables or piece.required_role > WRITER:
            raise self.lacks(piece.required_role, f"this statement {_DOES[piece.required_role]}", sql=piece.sql)
        for names, role, does in ((piece.writes, WRITER, "changes"), (piece.reads, READER, "reads")):
            for name in sorted(names):
                key = folded(name)
                if max(self.role, self.tables.get(key, 0)) < role and key not in views and key not in ANYBODYS:
                    is_users = not key.startswith(("bedrockish_", "sqlite_", "pragma", "dbstat"))
                    raise self.lacks(role, f"this statement {does} {name}", name * is_users, sql=piece.sql)

    def includes(self, other: "Rights | None") -> bool:
        """Return whether these rights include other rights; None: the right to do everything."""
        if other is None:
            return self.role >= ADMIN
        mine = self.tables
        return self.role >= other.role and all(
            max(self.role, mine.get(name, 0)) >= role for name, role in other.tables.items()
        )

    @property
    def has_any(self) -> bool:
        """True if the user may read any table."""
        return self.role >= READER or bool(self.tables)

    def require(self, role: int, what: str) -> None:
        """Make sure that the user has a role.

        Raises:
            ForbiddenError: the user lacks the role; ``what`` names the action that needs it.
        """
        if role > self.role:
            raise self.lacks(role, what)

    def lacks(self, role: int, what: str, table: str = "", **details: str) -> ForbiddenError:
        """Return the error for an action whose role the user lacks; with ``table``, a role for this table is enough."""
        name = self.user.removeprefix(CERTIFIED)  # the user that a certificate stands for
        if self.role == NOBODY:
            known = f"; an admin makes that user with 'bedrockish user add URL {name}'" if name != self.user else ""
            return ForbiddenError(
                f"the cluster does not know {self.user or 'this caller'}; log in as one of its users: "
                f"bedrockish://user:password@host:port{known}",
                user=self.user,
                **details,
            )
        need = ROLES[max(role, READER) - 1]
        return ForbiddenError(
            f"{what}, for which {self.user} needs the role {need}; an admin gives it with "
            f"'bedrockish user grant URL {name} {need}{f' --table {shlex.quote(table)}' if table else ''}'",
            user=self.user,
            role=need,
            **details,
        )


class Access:
    """The rights of all users at one node."""

    def __init__(self) -> None:
        # The cluster's users by name; None for a removed user. Empty: every user may do everything.
        self.users: Mapping[str, UserSaid | None] = {}
        # Users in the node's configuration, who are admins here until the cluster has a user of that name.
        self.bootstrap: Collection[str] = ()
        self.nodes: Collection[str] = ()  # the members, whose certificates may do everything
        self.config = 0  # the version of the membership from which the users and members are taken
        self._known: dict[str, Rights] = {}

    def learn(self, users: Mapping[str, UserSaid | None], nodes: Collection[str], config: int = 0) -> None:
        """Use the users and members of another membership from now on."""
        self.users, self.nodes, self.config, self._known = users, frozenset(nodes), config, {}

    def of(self, user: str) -> Rights | None:
        """Return the rights of a user; None if every user may do everything."""
        if not self.users:
            return None
        found = self._known.get(user)
        if found is None:
            found = Rights(user, *self._rights(user))
            if len(self._known) < KNOWN_MAX:
                self._known[user] = found
        return found

    def check_kept(self, user: str, before: Rights | None) -> None:
        """Make sure that a user still has the rights with which earlier statements of its transaction ran.

        Raises:
            ForbiddenError: a part of these rights was taken away.
        """
        rights = self.of(user)
        if rights is not None and not rights.includes(before):
            name = user.removeprefix(CERTIFIED) or "clients that show no user"
            raise ForbiddenError(
                f"rights of {name} were taken away while the transaction was open; the transaction did not happen: "
                "run it again with the remaining rights, which 'bedrockish user list' shows to an admin",
                user=user,
            )

    def require(self, user: str, role: int, what: str) -> None:
        """Make sure that a user has a role, unless every user may do everything.

        Raises:
            ForbiddenError: the user lacks the role.
        """
        rights = self.of(user)
        if rights is not None:
            rights.require(role, what)

    def _rights(self, user: str) -> tuple[int, Mapping[str, int]]:
        if user in (TOKEN, LOCAL):
            return ADMIN, _NO_TABLES
        kind, colon, holder = user.partition(":")
        if colon and kind == "node":
            return ADMIN if holder in self.nodes else NOBODY, _NO_TABLES
        name = holder if colon and kind == "client" else user
        if name not in self.users:
            return ADMIN if name == user and name in self.bootstrap else NOBODY, _NO_TABLES
        said = self.users[name]
        if said is None:
            return NOBODY, _NO_TABLES
        return said.role, {folded(table): role for table, role in said.tables.items()}


@remembered
def opened(sql: str) -> str:
    """Return a text in which queries without secrets replace the tables with secrets; unchanged if it names none.

    Only a single SELECT is changed. Any other statement that reads secrets needs an admin.
    """
    lower = sql.lower()
    if JOURNAL not in lower and META not in lower:
        return sql
    try:
        found = tokens(sql)
    except NotTokensError:
        return sql  # SQLite itself reports the error
    named = {token.start: (token.name or "").lower() for token in found if token.kind in ("word", "quoted")}
    tables = sorted(_OPENED.keys() & set(named.values()))
    if not tables or not found[0].is_word("SELECT", "WITH") or any(token.text == ";" for token in found[:-1]):
        return sql
    texts = ", ".join(_OPENED[table] for table in tables)
    others = ((token, _OPEN_NAMES.get(named.get(token.start, ""))) for token in found)
    cuts = [(token.start, token.end, other) for token, other in others if other is not None]
    return with_queries(sql, found, texts, cuts)
