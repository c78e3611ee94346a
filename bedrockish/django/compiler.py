"""Django's SQL compilers; the compiler of queries supports ``select_for_update()``.

SQLite has no FOR UPDATE, and here no row is locked: the rows that such a query selects are written, with their present
values, just before they are read. So if two transactions select the same row for update, the transaction that commits
later loses and can run again, in snapshot isolation as well.
"""

from typing import Any

from django.db.models import F
from django.db.models.sql import UpdateQuery, compiler
from django.db.models.sql.compiler import SQLAggregateCompiler, SQLDeleteCompiler, SQLInsertCompiler, SQLUpdateCompiler

__all__ = ["SQLAggregateCompiler", "SQLCompiler", "SQLDeleteCompiler", "SQLInsertCompiler", "SQLUpdateCompiler"]


class SQLCompiler(compiler.SQLCompiler):
    """The compiler of queries, with ``select_for_update()``."""

    def execute_sql(self, *args: Any, **kwargs: Any) -> Any:
        """Write the rows that the query selects for update, then run the query."""
        # A plan reads no row. Django puts EXPLAIN in front of the query, and would put it into the claim as well.
        if self.query.select_for_update and self.query.model is not None and self.query.explain_info is None:
            self.as_sql()  # raises Django's own errors, such as for a query outside of a transaction
            self._claim()
        return super().execute_sql(*args, **kwargs)

    def _claim(self) -> None:
        selected = self.query.clone()
        selected.select_for_update = False
        selected.clear_select_clause()
        keys = selected.get_meta().pk_fields  # several for a composite key
        selected.add_fields([key.attname for key in keys])
        update = UpdateQuery(self.query.model)
        update.add_filter("pk__in", selected)
        update.add_update_fields([(keys[0], None, F(keys[0].attname))])
        update.get_compiler(self.using, self.connection).execute_sql(None)
