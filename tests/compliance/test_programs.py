"""Small programs use libraries that do not know bedrockish; each runs on three nodes and on plain SQLite."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.compliance.suites import three_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]
PLAIN, NODES = "plain SQLite", "three nodes"


@dataclass(frozen=True)
class Place:
    """Where a program finds its database.

    Attributes:
        url: for SQLAlchemy and libraries on top of it.
        file: the SQLite file, for programs that only read.
    """

    url: str
    file: Path

    def broker(self, scheme: str) -> str:
        """Return the URL as Celery writes it."""
        return f"{scheme}+{self.url}"


def check(found: object, wanted: object) -> None:
    """Raise an error if a program did not find its own writes."""
    assert found == wanted, f"{found!r}, not {wanted!r}"


def sqlmodel(place: Place) -> None:
    """Use a model that is a Pydantic model as well."""
    from sqlmodel import Field, Session, SQLModel, create_engine, select

    SQLModel.metadata.clear()  # clear the tables of the other run

    class Hero(SQLModel, table=True):
        id: int | None = Field(default=None, primary_key=True)
        name: str = Field(unique=True)
        age: int | None = None

    engine = create_engine(place.url)
    SQLModel.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Hero(name="Ann", age=30), Hero(name="Ben")])
        session.commit()
        hero = session.exec(select(Hero).where(Hero.name == "Ann")).one()
        hero.age = 31
        session.add(hero)
        session.commit()
        session.refresh(hero)
        check((hero.age, len(session.exec(select(Hero)).all())), (31, 2))
    engine.dispose()


def flask_sqlalchemy(place: Place) -> None:
    """Run a web application with one model."""
    import flask
    from flask_sqlalchemy import SQLAlchemy

    app = flask.Flask("programs")
    app.config["SQLALCHEMY_DATABASE_URI"] = place.url
    db = SQLAlchemy(app)

    class Page(db.Model):  # type: ignore[name-defined, misc]
        id = db.Column(db.Integer, primary_key=True)
        title = db.Column(db.String(80), unique=True, nullable=False)

    @app.post("/<title>")
    def add(title: str) -> str:
        db.session.add(Page(title=title))
        db.session.commit()
        return title

    @app.get("/")
    def pages() -> list[str]:
        return [page.title for page in db.session.scalars(db.select(Page).order_by(Page.title))]

    with app.app_context():
        db.create_all()
    client = app.test_client()
    check([client.post(f"/{title}").status_code for title in ("one", "two")], [200, 200])
    check(client.get("/").json, ["one", "two"])
    check(client.post("/one").status_code, 500)  # it is unique, and the session can be used further
    check(client.get("/").json, ["one", "two"])
    with app.app_context():
        db.engine.dispose()


def pandas(place: Place) -> None:
    """Write, replace, extend and read a frame."""
    import pandas as pd
    from sqlalchemy import create_engine

    engine = create_engine(place.url)
    frame = pd.DataFrame(
        {"name": ["a", "b", "c"], "value": [1.5, None, 3.0], "day": pd.to_datetime(["2024-01-02"] * 3)}
    )
    for how in ("replace", "replace", "append"):
        frame.to_sql("frame", engine, if_exists=how, index=False, chunksize=2)
    found = pd.read_sql("SELECT name, value, day FROM frame ORDER BY name", engine, parse_dates=["day"])
    check((len(found), found["value"].sum(), found["day"].nunique()), (6, 9.0, 1))
    check(sorted(pd.read_sql_table("frame", engine)["name"].unique()), ["a", "b", "c"])
    engine.dispose()


def dataset(place: Place) -> None:
    """Write into tables and columns that do not exist yet: the library creates them."""
    import dataset as library

    db = library.connect(place.url)
    table = db["animal"]
    table.insert({"name": "cat", "legs": 4})
    table.insert_many([{"name": "hen", "legs": 2, "sound": "cluck"}, {"name": "ant", "legs": 6}])
    table.upsert({"name": "cat", "legs": 4, "sound": "meow"}, ["name"])
    check([row["name"] for row in table.find(legs={">=": 4}, order_by="name")], ["ant", "cat"])
    check(table.find_one(name="cat")["sound"], "meow")  # type: ignore[index]
    with db as inside:
        inside["animal"].delete(name="ant")
    check((len(table), [row["n"] for row in db.query("SELECT count(*) AS n FROM animal")]), (2, [2]))
    db.close()


def records(place: Place) -> None:
    """Run SQL texts, and export their rows."""
    import records as library

    db = library.Database(place.url)
    with db.transaction() as connection:  # outside of one, this release of records commits nothing
        connection.query("CREATE TABLE song(id INTEGER PRIMARY KEY, title TEXT)")
        connection.bulk_query("INSERT INTO song(title) VALUES (:title)", [{"title": "one"}, {"title": "two"}])
    with db.transaction() as connection:
        connection.query("UPDATE song SET title = title || '!' WHERE title = :title", title="one")
    rows = db.query("SELECT title FROM song ORDER BY title")
    check([row.title for row in rows], ["one!", "two"])
    check(rows.export("csv").split(), ["title", "one!", "two"])
    check("song" in db.get_table_names(), True)
    db.close()


def celery(place: Place) -> None:
    """Keep a queue of tasks and their results in the database."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    app = Celery("programs", broker=place.broker("sqla"), backend=place.broker("db"))
    app.conf.broker_connection_retry_on_startup = True

    @app.task  # type: ignore[untyped-decorator]
    def add(one: int, other: int) -> int:
        return one + other

    with start_worker(app, perform_ping_check=False, pool="solo", loglevel="error"):
        results = [add.delay(number, 1) for number in range(5)]
        check([result.get(timeout=60) for result in results], [1, 2, 3, 4, 5])


def sqlite_utils(place: Place) -> None:
    """Read the file of a node as a SQLite file."""
    import sqlite_utils as library

    _some_rows(place)
    db = library.Database(place.file)
    check([row["x"] for row in db["some"].rows_where(order_by="x")], [1, 2])
    check(db["some"].columns_dict, {"x": int})
    db.close()


def datasette(place: Place) -> None:
    """Read the file of a node as pages and JSON."""
    _some_rows(place)
    page = f"/{place.file.stem}/some.json?_shape=array"
    command = [sys.executable, "-m", "datasette", str(place.file), "--get", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    check((done.returncode, sorted(row["x"] for row in json.loads(done.stdout or "[]"))), (0, [1, 2]))


def _some_rows(place: Place) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(place.url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS some"))
        connection.execute(text("CREATE TABLE some(x INTEGER)"))
        connection.execute(text("INSERT INTO some VALUES (1), (2)"))
    engine.dispose()


QUICK = (sqlmodel, flask_sqlalchemy, pandas, dataset, records)
LONG = (celery, sqlite_utils, datasette)


@pytest.fixture(scope="module", params=[NODES, PLAIN])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("programs")
    if request.param == PLAIN:
        yield Place(f"sqlite:///{folder / 'plain.sqlite'}", folder / "plain.sqlite")
        return
    with three_nodes(folder / "cluster") as cluster:
        first, *others = (f"127.0.0.1:{node.port}" for node in cluster.nodes)
        hosts = "&".join(f"host={other}" for other in others)
        yield Place(f"bedrockish://{first}/?{hosts}", cluster.nodes[0].database)


@pytest.mark.parametrize("program", [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in LONG)])
def test_program_written_for_sqlite_runs_unchanged(program: Callable[[Place], None], place: Place) -> None:
    if importlib.util.find_spec(program.__name__) is None:
        pytest.skip(f"{program.__name__} is not installed; pip install 'bedrockish[programs]'")
    program(place)
