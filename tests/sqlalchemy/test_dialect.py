"""The SQLAlchemy dialect on one real node: URLs, isolation, errors, reflection, migrations."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
import trio
from alembic import command
from alembic.config import Config
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, create_engine, inspect, select, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ArgumentError, CompileError, DataError, IntegrityError, NotSupportedError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

import bedrockish.sqlalchemy
from bedrockish.dbapi import InterfaceError
from bedrockish.errors import ConfigError
from bedrockish.sqlalchemy import BedrockishDialect, make_url
from bedrockish.sqlalchemy.urls import client_url
from tools.cluster import LocalCluster, local_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("node") / "node", ("A",)) as running:
        trio.run(running.wait_ready, 0)
        yield running


@pytest.fixture
def engine(cluster: LocalCluster) -> Iterator[Engine]:
    made = create_engine(cluster.url(options="/?read=strict"))
    yield made
    with made.begin() as connection:
        for table in reversed(inspect(connection).get_table_names()):
            connection.exec_driver_sql(f'DROP TABLE "{table}"')
    made.dispose()


@pytest.mark.parametrize(
    "url", ["bedrockish://a:1,b:2,[::1]:3/?read=session&timeout=5", "bedrockish://a", "bedrockish://[::1]:5"]
)
def test_urls_survive_sqlalchemys_url_class(url: str) -> None:
    from sqlalchemy.engine import make_url as read

    ours = make_url(url)
    again = read(ours.render_as_string())
    assert again == ours
    (found,), options = BedrockishDialect().create_connect_args(again)
    from bedrockish.api.url import parse_url

    assert parse_url(found) == parse_url(url)
    assert options == {"autocommit": False}


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("bedrockish://[a:1,b:2]/", "bedrockish://a:1,b:2/"),
        ("bedrockish:///?host=a:1&host=b:2&read=stale", "bedrockish://a:1,b:2/?read=stale"),
        ("bedrockish://a:1/?host=b:2", "bedrockish://a:1,b:2/"),
        ("bedrockish://a,b/", "bedrockish://a,b/"),
        ("bedrockish://ann:s%2Fe%40@[a:1,b:2]/?ca=x.pem", "bedrockish://ann:s%2Fe%40@a:1,b:2/?ca=x.pem"),
        ("bedrockish://ann@a/", "bedrockish://ann@a/"),
    ],
)
def test_urls_name_several_nodes_in_forms_that_sqlalchemy_parses(url: str, means: str) -> None:
    from sqlalchemy.engine import make_url as read

    from bedrockish.api.url import parse_url

    (found,), _ = BedrockishDialect().create_connect_args(read(url))
    assert parse_url(found) == parse_url(means)
    ours = make_url(means)
    assert parse_url(BedrockishDialect().create_connect_args(ours)[0][0]) == parse_url(means)


def test_wrong_urls_are_refused() -> None:
    from sqlalchemy.engine import make_url as read

    for url in ("bedrockish://a:1/shop",):
        with pytest.raises(ConfigError):
            client_url(read(url), {})
    with pytest.raises(InterfaceError):
        BedrockishDialect.import_dbapi().connect("bedrockish://a/?colour=red")
    with pytest.raises((ArgumentError, ValueError)):
        create_engine("bedrockish://a:1,b:2/")  # SQLAlchemy reads one port; hence the brackets


@pytest.mark.cluster
def test_transactions_are_serializable_from_their_first_read(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a(id INTEGER PRIMARY KEY, n INTEGER)")
        connection.exec_driver_sql("INSERT INTO a VALUES (1, 1)")
    with engine.connect() as first, engine.connect() as second:
        assert first.get_isolation_level() == first.default_isolation_level == "SERIALIZABLE"
        n = first.scalar(text("SELECT n FROM a WHERE id = 1"))
        second.execute(text("UPDATE a SET n = n + 1"))
        second.commit()
        with pytest.raises(OperationalError) as caught:
            first.execute(text("UPDATE a SET n = :n"), {"n": n + 1})
        assert not caught.value.connection_invalidated
        first.rollback()
        assert first.scalar(text("SELECT n FROM a")) == 2


@pytest.mark.cluster
def test_isolation_levels_can_be_chosen(engine: Engine) -> None:
    for level in ("SNAPSHOT", "AUTOCOMMIT", "SERIALIZABLE"):
        with engine.connect().execution_options(isolation_level=level) as connection:
            assert connection.get_isolation_level() == level
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CREATE TABLE b(id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO b VALUES (1)")
        connection.rollback()
        assert connection.scalar(text("SELECT count(*) FROM b")) == 1


@pytest.mark.cluster
def test_failed_savepoint_keeps_the_transaction(engine: Engine) -> None:
    table = Table("s", MetaData(), Column("id", Integer, primary_key=True))
    with engine.begin() as connection:
        table.create(connection)
    with engine.begin() as connection:
        connection.execute(table.insert(), {"id": 1})
        with pytest.raises(IntegrityError), connection.begin_nested():
            connection.execute(table.insert(), [{"id": 2}, {"id": 1}])
        connection.execute(table.insert(), {"id": 3})
    with engine.connect() as connection:
        assert connection.scalars(table.select().order_by(table.c.id)).all() == [1, 3]


@pytest.mark.cluster
def test_errors_have_their_class_and_own_tables_are_hidden(engine: Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(OperationalError, match="no such table"):
            connection.exec_driver_sql("SELECT * FROM nowhere")
        assert engine.dialect.do_ping(connection.connection.dbapi_connection)  # type: ignore[arg-type]
    assert inspect(engine).get_table_names() == []
    assert engine.dialect.name == "sqlite"


@pytest.mark.cluster
def test_a_lost_node_invalidates_the_connection(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        engine = create_engine(cluster.url(options="/?connect_timeout=0.5&timeout=2"), pool_pre_ping=True)
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE t(x)")
            connection.commit()
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
            cluster.nodes[0].kill()
            with pytest.raises(OperationalError) as caught:
                connection.exec_driver_sql("INSERT INTO t VALUES (2)")
            assert caught.value.connection_invalidated
        cluster.nodes[0].start()
        trio.run(cluster.wait_ready, 0)
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM t")) == 0
        engine.dispose()


ENV = """
from alembic import context
from sqlalchemy import create_engine
engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=None, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
FIRST = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "first", None
def upgrade():
    op.create_table("parent", sa.Column("id", sa.Integer, primary_key=True))
    child = op.create_table(
        "child",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("parent", sa.Integer, sa.ForeignKey("parent.id")),
        sa.Column("name", sa.String(20)),
    )
    op.create_index("child_name", "child", ["name"])
    op.execute("INSERT INTO parent VALUES (1)")
    op.bulk_insert(child, [{"id": 7, "parent": 1, "name": "x"}])
def downgrade():
    op.drop_table("child")
    op.drop_table("parent")
"""
SECOND = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "second", "first"
def upgrade():
    op.add_column("child", sa.Column("age", sa.Integer, server_default="3"))
    with op.batch_alter_table("child") as batch:
        batch.alter_column("name", existing_type=sa.String(20), nullable=False)
def downgrade():
    with op.batch_alter_table("child") as batch:
        batch.alter_column("name", existing_type=sa.String(20), nullable=True)
        batch.drop_column("age")
"""


@pytest.mark.cluster
def test_alembic_migrates_there_and_back(engine: Engine, tmp_path: Path) -> None:
    """Alembic runs two revisions up and down: the first makes tables, the second adds a column and copies a table."""
    (tmp_path / "versions").mkdir()
    for name, content in (("env.py", ENV), ("versions/first.py", FIRST), ("versions/second.py", SECOND)):
        (tmp_path / name).write_text(content)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", engine.url.render_as_string())

    command.upgrade(config, "head")
    columns = {column["name"]: column for column in inspect(engine).get_columns("child")}
    assert list(columns) == ["id", "parent", "name", "age"]
    assert not columns["name"]["nullable"]
    assert [index["name"] for index in inspect(engine).get_indexes("child")] == ["child_name"]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT * FROM child")).one() == (7, 1, "x", 3)

    command.downgrade(config, "first")
    columns = {column["name"]: column for column in inspect(engine).get_columns("child")}
    assert list(columns) == ["id", "parent", "name"]
    assert columns["name"]["nullable"]
    command.downgrade(config, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]


def test_results_that_are_asked_for_as_streams_come_in_parts(engine: Engine) -> None:
    """The result is larger than one answer; within an open transaction it comes as usual."""
    many = text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000) SELECT i, zeroblob(10000) FROM n"
    )
    with engine.connect() as connection:
        result = connection.execution_options(stream_results=True, max_row_buffer=100).execute(many)
        assert sum(len(blob) for _, blob in result) == 50_000_000
        result = connection.execution_options(stream_results=True).execute(many)
        assert [len(part) for part in result.partitions(2000)] == [2000, 2000, 1000]
    with engine.connect() as connection, pytest.raises(DataError, match="stream"):
        connection.execute(many)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE streamed(id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO streamed VALUES (1), (2)")
        rows = connection.execution_options(stream_results=True).exec_driver_sql("SELECT id FROM streamed").all()
        assert [row[0] for row in rows] == [1, 2]


@pytest.mark.parametrize("level", ["SNAPSHOT", "SERIALIZABLE"])
def test_for_update_makes_two_transactions_that_select_one_row_conflict(engine: Engine, level: str) -> None:
    metadata = MetaData()
    study = Table("study", metadata, Column("id", Integer, primary_key=True), Column("x", Integer))
    trial = Table("trial", metadata, Column("id", Integer, primary_key=True), Column("study", Integer))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(study.insert(), [{"id": 1, "x": 5}, {"id": 2, "x": 6}])
    isolated = engine.execution_options(isolation_level=level)
    locked = study.select().where(study.c.id == 1).with_for_update()
    with isolated.connect() as one, isolated.connect() as two:
        assert one.execute(locked).one() == (1, 5)
        assert two.execute(locked).one() == (1, 5)
        one.execute(trial.insert(), {"id": 1, "study": 1})
        two.execute(trial.insert(), {"id": 2, "study": 1})
        one.commit()
        with pytest.raises(OperationalError) as caught:
            two.commit()
        assert getattr(caught.value.orig, "retry", False)
        two.rollback()
        # Another row does not conflict, nor does a cached statement with another value.
        other = study.select().where(study.c.id == 2).with_for_update()
        assert one.execute(locked).one() == (1, 5)
        assert two.execute(other).one() == (2, 6)
        one.commit()
        two.commit()


def test_for_update_changes_no_value(engine: Engine) -> None:
    """A SELECT must give a column with ``onupdate`` no new value; a column's name may differ from its key."""
    metadata = MetaData()
    job = Table(
        "job",
        metadata,
        Column("Id", Integer, key="id", primary_key=True),
        Column("Changed", Integer, key="changed", onupdate=lambda: 9),
        Column("n", Integer, onupdate=text("n + 1")),
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(job.insert(), {"id": 1, "changed": 1, "n": 1})
        assert connection.execute(job.select().with_for_update()).one() == (1, 1, 1)
    with engine.connect() as connection:
        assert connection.execute(job.select()).one() == (1, 1, 1)


def test_for_update_of_an_alias_makes_transactions_conflict(engine: Engine) -> None:
    item = Table("item", MetaData(), Column("id", Integer, primary_key=True), Column("above", Integer))
    item.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(item.insert(), [{"id": 1, "above": 0}, {"id": 2, "above": 1}])
    upper, lower = item.alias(), item.alias()
    joined = lower.join(upper, lower.c.above == upper.c.id)
    with engine.connect() as one, engine.connect() as two:
        locked = select(lower.c.id).select_from(joined).where(upper.c.id == 1).with_for_update(of=upper)
        assert one.execute(locked).scalar_one() == 2
        assert two.execute(upper.select().where(upper.c.id == 1).with_for_update()).one() == (1, 0)
        one.commit()
        with pytest.raises(OperationalError, match="run it again"):
            two.commit()


def test_for_update_with_a_limit_and_joined_eager_loading_makes_transactions_conflict(engine: Engine) -> None:
    """The ORM selects from a subquery, in which the dialect has to find the table."""

    class Base(DeclarativeBase):
        pass

    class Page(Base):
        __tablename__ = "page"
        id: Mapped[int] = mapped_column(primary_key=True)
        notes: Mapped[list["Note"]] = relationship(lazy="joined")

    class Note(Base):
        __tablename__ = "note"
        id: Mapped[int] = mapped_column(primary_key=True)
        page_id: Mapped[int] = mapped_column(ForeignKey("page.id"))

    Base.metadata.create_all(engine)
    with Session(engine) as one, Session(engine) as two:
        one.add_all([Page(id=1), Page(id=2), Note(id=1, page_id=2)])
        one.commit()
        for session in (one, two):
            page = session.query(Page).filter(Page.id > 1).with_for_update().order_by(Page.id).first()
            assert page is not None
            assert (page.id, len(page.notes)) == (2, 1)
        one.commit()
        with pytest.raises(OperationalError, match="run it again"):
            two.commit()
    Base.metadata.drop_all(engine)


def test_for_update_without_a_table_locks_no_row(engine: Engine) -> None:
    with engine.begin() as connection:
        assert connection.execute(select(1).with_for_update()).scalar() == 1


def test_for_update_without_a_key_is_refused(engine: Engine) -> None:
    bare = Table("bare", MetaData(), Column("x", Integer))
    bare.metadata.create_all(engine)
    with engine.connect() as connection, pytest.raises(CompileError, match="has no primary key"):
        connection.execute(bare.select().with_for_update())


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "thing"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def test_many_new_objects_are_inserted_by_one_statement_and_have_their_own_ids(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    texts: list[str] = []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *arguments: texts.append(arguments[2]))
    with Session(engine) as session:
        made = [Thing(name=f"n{number}") for number in range(1_500)]
        session.add_all(made)
        session.flush()
        ids = {one.id: one.name for one in made}
        session.commit()
    assert len([one for one in texts if one.startswith("INSERT")]) == 2  # of at most a thousand rows each
    with Session(engine) as session:
        assert {one.id: one.name for one in session.execute(select(Thing)).scalars()} == ids


def test_many_new_objects_are_refused_if_their_ids_do_not_rise(engine: Engine) -> None:
    """After the last possible id, SQLite looks for a free one at random."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Thing(id=2**63 - 1, name="last"))
        session.commit()
        session.add_all([Thing(name=f"n{number}") for number in range(50)])
        with pytest.raises(NotSupportedError, match="last possible id"):
            session.commit()
        session.rollback()
        assert session.execute(select(Thing.name)).scalars().all() == ["last"]
        session.add(Thing(name="alone"))
        session.commit()


def test_sqlite_scheme_with_the_bedrockish_driver_selects_the_dialect(cluster: LocalCluster) -> None:
    """Some programs accept URLs of a few databases only."""
    made = create_engine(cluster.url().replace("bedrockish://", "sqlite+bedrockish://"))
    with made.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    assert (made.dialect.name, made.dialect.driver) == ("sqlite", "bedrockish")
    made.dispose()


@pytest.mark.cluster
def test_url_asks_for_commits_before_schema_statements(cluster: LocalCluster) -> None:
    made = create_engine(cluster.url(options="/?schema_commits=yes"))
    with made.connect() as connection:
        connection.execute(text("CREATE TABLE of_its_own(a)"))
    with made.begin() as connection:  # the rollback at the end of the last block undid nothing
        connection.execute(text("DROP TABLE of_its_own"))
    made.dispose()


def test_older_sqlalchemy_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlalchemy, "__version__", "1.4.54")
    with pytest.raises(ImportError, match=r"SQLAlchemy 1\.4\.54 is installed.*docs/unchanged-programs\.md"):
        importlib.reload(bedrockish.sqlalchemy)
