"""The compiled texts of a connection: the statements of each text, and quicker ways to run a known text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import apsw

from bedrockish.access_sets.analysis import Analysis
from bedrockish.access_sets.call_costs import OF_SCHEMA, Lengths
from bedrockish.access_sets.definitions import folded
from bedrockish.access_sets.readset import schema_lengths
from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import Statement
from bedrockish.engine.execution.governor import Governor
from bedrockish.engine.execution.recipes import KnownTexts, Lookup, Recipe, recipe_again, recipe_alike, with_params
from bedrockish.engine.sqlite.bind import Binder
from bedrockish.engine.sqlite.limits import LONG_TEXT, MANY_PARAMETERS
from bedrockish.engine.statements.compiled import EMPTY, READ, SCHEMA, WRITE, Compiled
from bedrockish.engine.statements.expansion import LOOP_TOKENS, Expansion
from bedrockish.engine.statements.guard import Guard
from bedrockish.engine.statements.insert_rewriter import Rewritten, rewrite
from bedrockish.engine.statements.rights import Access, Rights
from bedrockish.engine.statements.settings import settled
from bedrockish.errors import BedrockishError, SqlError
from bedrockish.sqltext.session_settings import NONE, Settings, split_settings
from bedrockish.sqltext.statement_ends import first_word, statement_start
from bedrockish.sqltext.text_forms import BLANKS, Form, with_parameters
from bedrockish_journal.model.membership import ADMIN, OWNER

TEXTS_MAX, TEXTS_BYTES = 2_000, 16 << 20  # compiled texts in the cache, and their bytes
TEXT_CHARACTERS = 64 << 10  # longer texts are not cached
FORMS_MAX = 500  # forms of texts that are remembered, each of at most ``text_forms.FORM_MAX``
TEXT_BYTES = TEXTS_BYTES // 8  # a text whose compiled statements take more bytes is not cached


class CompiledTexts:
    """The texts that a connection has compiled for the schema in force; each use of a text checks the user's rights."""

    def __init__(self, db: apsw.Connection, guard: Guard, governor: Governor, access: Access) -> None:
        self._db, self._guard, self._governor, self._access = db, guard, governor, access
        self._all = KnownTexts()
        self._limited = KnownTexts()  # texts compiled for users that may not read secrets
        self._again: dict[str, Recipe | None] = {}  # text -> the result of ``again``
        # Texts that have run, write rows, have no settings and call no function about their transaction.
        self.only_writes: set[str] = set()
        self._forms = set[str]()  # the forms of texts of literals that have run, if their tables allow forms
        self._weight = 0  # approximate bytes of the cached texts
        self._tables: Tables
        self._analysis: Analysis
        self._views: frozenset[str]
        guard.is_in_loop = lambda: governor.budget.is_brief

    @property
    def expansion(self) -> Expansion:
        """The sizes of the views and triggers that a text may use."""
        return self._guard.expansion

    def use(self, tables: Tables, analysis: Analysis, known: Expansion | None) -> None:
        """Use the tables of a new schema, and drop the statements compiled for the old one.

        Args:
            known: sizes under an earlier schema, to reuse for unchanged views and triggers; None if unknown.
        """
        self._tables, self._analysis = tables, analysis
        self.forget()
        self._forms.clear()
        self._guard.virtual, self._guard.expansion = tables.virtual, Expansion(tables.definitions, known)
        self._views = frozenset(folded(row.name) for row in tables.definitions.latent if row.kind == "view")

    def allow_temporary(self) -> None:
        """Allow statements about TEMP objects, because the connection belongs to one session."""
        self._guard.allows_temporary = True

    def forget(self) -> None:
        """Drop the compiled texts, because the connection has other tables or too many texts."""
        for known in (self._all, self._limited, self.only_writes, self._again):
            known.clear()
        self._weight = 0
        self._analysis.forget()

    def lengths(self, piece: Compiled) -> Lengths:
        """Return the allowed lengths of a statement's values."""
        if piece.setting:
            return OF_SCHEMA
        if piece.kind == SCHEMA:
            return schema_lengths(self._db, piece.sql)
        return self._analysis.lengths(piece)

    # -- compiling -------------------------------------------------------------------------------------------------

    def pieces(
        self, statement: Statement, user: str = "", *, optimizes: bool = True
    ) -> Iterator[tuple[Compiled, tuple[Any, ...]]]:
        """Yield the compiled statements of a text with their parameters; the caller runs each before it requests the
        next.

        Args:
            statement: the text, with the parameters of its statements.
            user: the user whose rights are checked.
            optimizes: whether PRAGMA optimize may gather statistics; otherwise it does nothing.

        Raises:
            ForbiddenError: the user may not run it.
        """
        rights = self._access.of(user)
        texts = self._known_for(rights)
        known, values, form = self._known(statement, texts)
        if known is None and form in self._forms:
            self._compile_form(form, texts, rights)
            known, values, form = self._known(statement, texts)
        binder = Binder(values)
        if known is not None:
            for place, piece in enumerate(known, 1):
                yield self._checked(piece, binder, rights, is_last=place == len(known))
            return
        found: list[Compiled] = []
        (settings, at), until_schema = split_settings(statement.sql), True
        while at < len(statement.sql):
            with self._governor.judging(statement.sql):
                piece, at = self._compile_next(statement.sql, at, settings, rights, optimizes=optimizes)
            if piece.kind == EMPTY:
                continue
            if piece.kind == WRITE:
                piece.with_ids = self.with_ids(piece)
            is_last = statement_start(statement.sql, at) == len(statement.sql)
            given = self._checked(piece, binder, rights, is_last=is_last)
            found.append(piece)
            until_schema = until_schema and piece.kind != SCHEMA and not piece.defines_temporary
            if is_last and found == [piece] and piece.kind == WRITE and until_schema:
                self._cache(texts, statement.sql, found)  # also if it fails: many programs try to insert a row
            yield given
        if not found:
            raise SqlError("the text holds no statement, only blanks or comments")
        # Statements after a schema statement are compiled for a schema that is rolled back.
        if until_schema and statement.sql not in texts:
            self._cache(texts, statement.sql, found)
        if form and statement.sql in texts and self._allows_form(found[0], form):
            self._note_form(form)

    def _cache(self, texts: dict[str, tuple[Compiled, ...]], sql: str, found: Sequence[Compiled]) -> None:
        """Cache the statements of a text."""
        weight = sum(piece.memory_bytes for piece in found)
        if weight > TEXT_BYTES or len(sql) > TEXT_CHARACTERS or "optimize" in (lower := sql.lower()):
            return
        if len(texts) >= TEXTS_MAX or self._weight + weight > TEXTS_BYTES:
            self.forget()
        self._weight += weight
        texts[sql] = tuple(found)
        if "transaction_" not in lower and all(
            piece.kind == WRITE and not piece.setting and not piece.is_upkeep for piece in found
        ):
            self.only_writes.add(sql)

    def compiled(
        self, sql: str, user: str = "", at: int = 0, *, has_changed: bool = False, optimizes: bool = True
    ) -> tuple[Compiled, int]:
        """Compile the statement of a text that begins at or after an offset; return it, and the offset after it.

        Args:
            has_changed: whether the transaction has changed the schema, so that there may be triggers of its own.
            optimizes: as for ``pieces``.

        Raises:
            BedrockishError: as ``Guard.compile`` and ``Rights.check``.
        """
        rights = self._access.of(user)
        settings, start = split_settings(sql)
        with self._governor.judging(sql):
            piece, after = self._compile_next(
                sql, max(at, start), settings, rights, has_changed=has_changed, optimizes=optimizes
            )
        if rights is not None:
            rights.check(piece, self._views)
        return piece, after

    def _compile_next(
        self,
        sql: str,
        at: int,
        settings: Settings,
        rights: Rights | None,
        *,
        has_changed: bool = False,
        optimizes: bool = True,
    ) -> tuple[Compiled, int]:
        is_limited = rights is not None and rights.role < ADMIN
        optimizes = optimizes and (rights is None or rights.role >= OWNER)
        piece, after = self._guard.compile_next(sql, at, is_limited=is_limited, optimizes=optimizes)
        if settings and piece.kind != EMPTY:
            guard, text = self._guard, piece.sql
            piece = settled(
                piece,
                settings,
                self._db,
                self._tables.definitions,
                lambda: guard.compile(text, is_limited=is_limited, optimizes=optimizes),
                has_more=has_changed or guard.allows_temporary,
            )
        return piece, after

    def with_ids(self, piece: Compiled) -> Rewritten | None:
        """Return the statement rewritten to assign ids; None if SQLite reports that its effects or columns differ."""
        rewritten = rewrite(piece.sql, self._tables.by_name)
        if rewritten is None:
            return None
        try:
            with self._governor.judging(rewritten.sql), in_force(self._db, piece.settings):
                other = self._guard.compile(rewritten.sql, ours=True)
        except BedrockishError:
            return None  # the rewritten statement has too many columns, for example
        same = (other.kind, other.names, other.columns, other.tables, other.rest) == (
            (piece.kind, piece.names, piece.columns, piece.tables, "")
        )
        # A trigger that inserts into the same table could collide with ids that were assigned before it ran.
        own = {
            (rewritten.table, ""),
            (rewritten.table, "ROWID"),
            (rewritten.table, self._tables.by_name[rewritten.table].id_column),
        }
        return rewritten if same and not own & other.trigger_updates else None

    def is_long(self, statement: Statement) -> bool:
        """Return whether compiling a text, or binding its parameters, would block the loop for long."""
        if len(statement.sql) > LONG_TEXT or len(statement.params or ()) > MANY_PARAMETERS:
            return True
        return statement.sql not in self._all.texts and self._guard.expansion.added(statement.sql) > LOOP_TOKENS

    # -- known texts -----------------------------------------------------------------------------------------------

    def lookup(self, statement: Statement, user: str) -> tuple[Lookup, Statement] | None:
        """Return the compiled lookup for a text or its form, and the statement; None if neither is a known lookup.

        Raises:
            ForbiddenError: the user may not run it.
        """
        rights, sql = self._access.of(user), statement.sql
        known = self._limited if rights is not None and rights.role < ADMIN else self._all
        lookup = known.find(sql, self.lengths)
        if lookup is None and not statement.params and (form := self.known_form(sql)) is not None:
            statement = Statement(*form)
            lookup = known.find(form[0], self.lengths)
        if lookup is None:
            return None
        if rights is not None:
            is_form = statement.sql is not sql
            rights.check(replace(lookup.piece, sql=sql.strip(BLANKS)) if is_form else lookup.piece, self._views)
        return lookup, statement

    def single(self, statement: Statement, user: str = "") -> tuple[Compiled, tuple[Any, ...]] | None:
        """Return the only statement of a text with its parameters; None unless the text is known to have only one.

        Raises:
            ForbiddenError: the user may not run it.
        """
        rights = self._access.of(user)
        known, values, _ = self._known(statement, self._known_for(rights))
        if known is None or len(known) != 1:
            return None
        return self._checked(known[0], Binder(values), rights, is_last=True)

    def _known(
        self, statement: Statement, texts: dict[str, tuple[Compiled, ...]]
    ) -> tuple[tuple[Compiled, ...] | None, Any, str]:
        """Return the compiled statements of a text, or of its form with parameters, their values, and the form.

        The statements are None if neither is known. The form is empty for a text without literals.
        """
        sql = statement.sql
        if (known := texts.get(sql)) is not None or statement.params:
            return known, statement.params, ""
        form, values = with_parameters(sql) or ("", ())
        if form not in self._forms or (known := texts.get(form)) is None:
            return None, statement.params, form
        return (replace(known[0], client_text=sql.strip(BLANKS)),), values, form

    def all_only_write(self, texts: Sequence[str]) -> bool:
        """Return whether each of these texts, or its form, is in ``only_writes``."""
        known = self.only_writes
        forms = (self.known_form(text) for text in texts if text not in known)
        return all(form is not None and form[0] in known for form in forms)

    def _compile_form(self, form: str, texts: dict[str, tuple[Compiled, ...]], rights: Rights | None) -> None:
        """Compile and cache a form; cache none that fails, so that the client's text raises the error."""
        try:
            with self._governor.judging(form):
                piece, _ = self._compile_next(form, 0, NONE, rights)
        except BedrockishError:
            return
        if piece.kind == WRITE:
            piece.with_ids = self.with_ids(piece)
        self._cache(texts, form, [piece])

    def known_form(self, sql: str) -> Form | None:
        """Return the known form of a text of literals that has not run itself, and the values; None without one."""
        if sql in self._all.texts:
            return None
        form = with_parameters(sql)
        return form if form is not None and form[0] in self._forms else None

    def _allows_form(self, piece: Compiled, form: str) -> bool:
        """Return whether SQLite runs the form of a statement as fast as its literals.

        A partial index, or one on an expression, may need a literal, and a module of virtual tables may look for one.
        """
        if piece.kind == WRITE and first_word(form) in ("INSERT", "REPLACE") and "select" not in form.lower():
            return True  # no literal is compared with a column, but for ON CONFLICT, whose form may fail to compile
        for name in piece.reads | piece.writes:
            if folded(name) in self._views:
                continue
            captured, table = self._tables.by_name.get(name), self._analysis.schema.tables.get(name)
            if captured is None or captured.virtual or table is None:
                return False
            if any(index.partial or index.opaque for index in table.indexes):
                return False
        return True

    def _note_form(self, form: str) -> None:
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        self._forms.add(form)

    def repeatable(self, sql: str, user: str = "") -> Recipe | None:
        """Return the recipe to run a text in a batch; None unless the text has run before and is one plain write.

        Raises:
            ForbiddenError: the user may not run it.
        """
        rights = self._access.of(user)
        known = self._known_for(rights).get(sql)
        if known is None or len(known) != 1:
            return None
        if rights is not None:
            rights.check(known[0], self._views)
        return recipe_alike(known[0], self._analysis.plan)

    def again(self, sql: str) -> Recipe | None:
        """Return the recipe with which a text runs again in a transaction; None if it must run like any other.

        A text has a recipe if it has run before, is a single statement for which ``recipe_again`` returns one, and the
        cluster has no users, so that no rights need to be checked.
        """
        if self._access.users:
            return None
        if sql not in self._again:
            known = self._all.texts.get(sql)
            if known is None:
                return None
            is_one = len(known) == 1
            self._again[sql] = recipe_again(known[0], self._analysis.plan, self._tables) if is_one else None
        return self._again[sql]

    def has_run(self, sql: str) -> bool:
        """Return whether a text has run before, so that ``again`` may return a recipe."""
        return sql in self._all.texts

    def has_one(self, sql: str) -> bool:
        """Return whether a text, or its form, is one known statement that reads or writes rows.

        Return False for an INSERT of selected rows if the node assigns their ids: it may need many ids, and the caller
        would run it once more than necessary.
        """
        known = self._all.texts.get(sql)
        if known is None and (form := self.known_form(sql)) is not None:
            known = self._all.texts.get(form[0])
        if known is None or len(known) != 1 or known[0].kind not in (READ, WRITE) or known[0].setting:
            return False
        return known[0].with_ids is None or "select" not in sql.lower()

    def made_again(self, sql: str) -> Recipe | None:
        """Return the recipe that ``again`` has returned for a text before; None without one."""
        return None if self._access.users else self._again.get(sql)

    def _known_for(self, rights: Rights | None) -> dict[str, tuple[Compiled, ...]]:
        return (self._all if rights is None or rights.role >= ADMIN else self._limited).texts

    def _checked(
        self, piece: Compiled, binder: Binder, rights: Rights | None, *, is_last: bool
    ) -> tuple[Compiled, tuple[Any, ...]]:
        """Return a statement that the user may run, with the values of its parameters.

        For the last statement, also check that no value is left over: after the statement, the error would come too
        late, because an open transaction keeps the rows.
        """
        if rights is not None:
            rights.check(replace(piece, sql=piece.client_text) if piece.client_text else piece, self._views)
        given = with_params(piece, binder)
        if is_last:
            binder.finish()
        return given
