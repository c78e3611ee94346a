"""Alembic on three real nodes while others read and write: each revision is one change, batches and data included."""

from pathlib import Path

import pytest
import trio
from alembic import command
from alembic.config import Config

from bedrockish import open_client
from bedrockish.sqlalchemy import make_url
from tests.cluster.schema_load import Load
from tests.cluster.story import PATIENT, heard, judge_files, level, ready, rows
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

ENV = """
from alembic import context
from sqlalchemy import create_engine
engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    connection.commit()  # SQLAlchemy assumes an open transaction; otherwise Alembic would not commit
    context.configure(connection=connection, render_as_batch=True, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
FIRST = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "first", None
def upgrade():
    owner = op.create_table("owner", sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String(20)))
    op.create_table("pet", sa.Column("owner", sa.Integer, sa.ForeignKey("owner.id", ondelete="CASCADE")))
    op.bulk_insert(owner, [{"name": name} for name in ("ann", "ben", "cleo")])
    ids = [row.id for row in op.get_bind().execute(sa.select(owner.c.id).order_by(owner.c.name))]
    op.execute(sa.text("INSERT INTO pet VALUES (:owner)").bindparams(owner=ids[1]))
def downgrade():
    op.drop_table("pet")
    op.drop_table("owner")
"""
SECOND = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "second", "first"
def upgrade():
    with op.batch_alter_table("owner") as batch:
        batch.add_column(sa.Column("pets", sa.Integer, nullable=False, server_default="0"))
        batch.alter_column("name", existing_type=sa.String(20), nullable=False)
    bind = op.get_bind()
    for (owner,) in bind.execute(sa.text("SELECT owner FROM pet")).all():
        assert bind.execute(sa.text("UPDATE owner SET pets = pets + 1 WHERE id = :id"), {"id": owner}).rowcount == 1
    op.execute("UPDATE owner SET name = upper(name)")
    op.execute("PRAGMA user_version = 2")
def downgrade():
    with op.batch_alter_table("owner") as batch:
        batch.drop_column("pets")
"""


async def test_alembic_migrates_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    """A table with references to it is rebuilt, and rows are read and written in the same revision."""
    (tmp_path / "versions").mkdir()
    for name, content in (("env.py", ENV), ("versions/first.py", FIRST), ("versions/second.py", SECOND)):
        (tmp_path / name).write_text(content)
    await ready(cluster)
    load = Load(cluster)
    await load.prepare()

    def run(what: str, to: str, index: int) -> None:
        config = Config()
        config.set_main_option("script_location", str(tmp_path))
        config.set_main_option("path_separator", "os")
        url = make_url(cluster.url(index, only=True, options=PATIENT)).render_as_string()
        config.set_main_option("sqlalchemy.url", url)
        getattr(command, what)(config, to)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(load.write, number)
        for index, (what, to) in enumerate((("upgrade", "head"), ("downgrade", "first"), ("upgrade", "head"))):
            await trio.to_thread.run_sync(run, what, to, index)
            await heard(cluster, index)
        load.stopping = True
    assert load.failures == []
    await level(cluster)  # the last change is in force at this node, too
    async with open_client(cluster.url()) as client:
        history = (await client.execute("SELECT state, statements FROM bedrockish_schema")).rows
    revisions = [sql for _, sql in history if "alembic_version" in sql and "owner" in sql]
    assert len(revisions) == 4
    assert {state for state, _ in history} == {"active"}
    cluster.stop()
    judge_files(cluster)
    node = cluster.nodes[1]
    assert rows(node, "SELECT name, pets FROM owner ORDER BY id") == [("ANN", 0), ("BEN", 1), ("CLEO", 0)]
    assert rows(node, "SELECT version_num FROM alembic_version") == [("second",)]
    assert rows(node, "PRAGMA user_version") == [(2,)]
