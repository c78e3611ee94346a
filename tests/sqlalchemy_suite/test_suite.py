"""SQLAlchemy's own dialect compliance suite, all of it; run by `python -m tools.compliance`, not by a plain pytest.

Against bedrockish two things are otherwise. The Unicode tables are those that the suite makes for every database but
those by the name of ``sqlite``, our dialect's, too: what it makes for them has foreign keys to columns that are
not unique, which no database that enforces foreign keys lets one insert into. And whether a cursor streams, the suite
finds out for the drivers that it knows by name, and takes any other for one whose cursors never do; so it is told here.

Ids need no exception: where the suite wants 1, 2, 3, the table is made in the same transaction, whose ids are SQLite's.
``RisingIdsTest`` is about those that nodes give to tables made before, which leave gaps.
"""

from typing import Any
from unittest import mock

import pytest
from sqlalchemy import Column, Integer, String, Table, select, testing
from sqlalchemy.testing import fixtures
from sqlalchemy.testing.suite import *  # noqa: F403
from sqlalchemy.testing.suite import ComponentReflectionTest as _ReflectionTest
from sqlalchemy.testing.suite import ComponentReflectionTestExtra as _ReflectionTestExtra
from sqlalchemy.testing.suite import ServerSideCursorsTest as _ServerSideCursorsTest
from sqlalchemy.testing.suite import UnicodeSchemaTest as _UnicodeSchemaTest

from bedrockish.dbapi import StreamingCursor
from tests.sqlalchemy_suite.requirements import NO_SCHEMAS, Bedrockish, Requirements

if Requirements is Bedrockish:

    class UnicodeSchemaTest(_UnicodeSchemaTest):  # type: ignore[misc]
        @classmethod
        def define_tables(cls, metadata: Any) -> None:
            with mock.patch.object(testing, "against", return_value=False):
                super().define_tables(metadata)

    class ServerSideCursorsTest(_ServerSideCursorsTest):  # type: ignore[misc]
        def _is_server_side(self, cursor: Any) -> bool:
            return isinstance(cursor, StreamingCursor) and cursor._source is not None

    # These need a second schema without declaring it to the suite.

    class ComponentReflectionTestExtra(_ReflectionTestExtra):  # type: ignore[misc]
        @testing.fixture(params=[True, False])
        def use_schema_fixture(self, request: pytest.FixtureRequest) -> None:
            if request.param:
                pytest.skip(NO_SCHEMAS)

    class ComponentReflectionTest(_ReflectionTest):  # type: ignore[misc]
        @pytest.fixture(autouse=True)
        def _there_is_one_schema(self, request: pytest.FixtureRequest) -> None:
            if request.node.name.startswith("test_metadata[") and request.node.name.endswith("-True]"):
                pytest.skip(NO_SCHEMAS)

    class RisingIdsTest(fixtures.TablesTest):
        __backend__ = True
        __requires__ = ("insert_returning",)

        @classmethod
        def define_tables(cls, metadata: Any) -> None:
            Table("rising", metadata, Column("id", Integer, primary_key=True), Column("value", String))

        def test_many_rows_return_rising_ids_in_the_order_of_their_values(self, connection: Any) -> None:
            table = self.tables.rising
            values = [f"v{number}" for number in range(50)]
            statement = table.insert().returning(table.c.id, table.c.value, sort_by_parameter_order=True)
            result = connection.execute(statement, [{"value": value} for value in values]).all()
            assert [value for _, value in result] == values
            assert [given for given, _ in result] == sorted({given for given, _ in result})
            assert result == connection.execute(select(table).order_by(table.c.id)).all()
