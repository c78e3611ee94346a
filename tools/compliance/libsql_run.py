"""Small programs on Python's clients of libSQL, which know nothing of bedrockish: each is a test by its name.

``python -m tools.compliance.libsql_run RECORD --http URL --ws URL`` with the URLs of a node, or ``--file FILE`` for a
SQLite file, which one of them cannot open.
"""

import argparse
import datetime
import json
import warnings
from collections.abc import Callable
from pathlib import Path

from tools.compliance.outcomes import FAILED, PASSED, SKIPPED, Outcomes


def check(found: object, wanted: object) -> None:
    """Raise an error if a program found something else than it wrote."""
    assert found == wanted, f"{found!r}, not {wanted!r}"


def libsql(url: str) -> None:
    """The Rust client, as Python has it."""
    import libsql

    connection = libsql.connect(database=url, auth_token="") if "://" in url else libsql.connect(url)
    connection.execute("DROP TABLE IF EXISTS pet")
    connection.execute("CREATE TABLE pet(id INTEGER PRIMARY KEY, name TEXT UNIQUE, weight REAL, picture BLOB)")
    connection.commit()
    connection.execute("INSERT INTO pet VALUES (?, ?, ?, ?)", (1, "rex", 1.5, b"\x00\xff"))
    connection.commit()
    check(connection.execute("SELECT * FROM pet").fetchall(), [(1, "rex", 1.5, b"\x00\xff")])
    connection.execute("DELETE FROM pet")
    check(connection.execute("SELECT count(*) FROM pet").fetchone(), (0,))
    connection.rollback()
    check(connection.execute("SELECT count(*) FROM pet").fetchone(), (1,))
    try:
        connection.execute("INSERT INTO pet(name) VALUES ('rex')")
    except ValueError as error:  # what it raises for everything
        check("UNIQUE constraint failed" in str(error), True)
    else:
        raise AssertionError("the same name twice")


def libsql_client(url: str) -> None:
    """Its predecessor, in Python alone; over HTTP it has no transactions but batches."""
    import libsql_client as module

    with module.create_client_sync(url) as client:
        client.batch(["DROP TABLE IF EXISTS toy", "CREATE TABLE toy(id INTEGER PRIMARY KEY, name UNIQUE)"])
        made = client.execute("INSERT INTO toy(id, name) VALUES (?, ?)", [7, "ball"])
        check((made.rows_affected, made.last_insert_rowid), (1, 7))
        check([tuple(row) for row in client.execute("SELECT * FROM toy").rows], [(7, "ball")])
        try:
            client.batch(["DELETE FROM toy", "INSERT INTO toy(name) VALUES ('x'), ('x')"])
        except module.LibsqlError as error:
            check(error.code.startswith("SQLITE_CONSTRAINT"), True)
        else:
            raise AssertionError("the same name twice")
        check(len(client.execute("SELECT * FROM toy").rows), 1)
        if not url.startswith("http"):
            transaction = client.transaction()
            transaction.execute("DELETE FROM toy")
            transaction.rollback()
            check(len(client.execute("SELECT * FROM toy").rows), 1)


def sqlalchemy_libsql(url: str) -> None:
    """SQLAlchemy's ORM on the Rust client."""
    from sqlalchemy import ForeignKey, create_engine, select
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

    class Base(DeclarativeBase):
        pass

    class Owner(Base):
        __tablename__ = "owner"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column(unique=True)
        cats: Mapped[list["Cat"]] = relationship(back_populates="owner")

    class Cat(Base):
        __tablename__ = "cat"
        id: Mapped[int] = mapped_column(primary_key=True)
        owner_id: Mapped[int] = mapped_column(ForeignKey("owner.id"))
        owner: Mapped[Owner] = relationship(back_populates="cats")

    place = f"sqlite+libsql://{url.partition('://')[2]}" if "://" in url else f"sqlite+libsql:///{url}"
    engine = create_engine(place, connect_args={"auth_token": ""} if "://" in url else {})
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Owner(name="Ann", cats=[Cat(), Cat()]))
        session.commit()
        check(len(session.scalars(select(Owner)).one().cats), 2)
        session.add(Owner(name="Ann"))
        try:
            session.commit()
        except (DBAPIError, ValueError):
            session.rollback()
        else:
            raise AssertionError("the same name twice")
        check(len(session.scalars(select(Cat)).all()), 2)
    engine.dispose()


def django_libsql(url: str) -> None:
    """Django's ORM on the client in Python."""
    import django
    from django.conf import settings

    database = {"ENGINE": "libsql.db.backends.sqlite3", "NAME": url}
    settings.configure(DATABASES={"default": database}, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
    django.setup()
    from django.db import IntegrityError, connection, models, transaction

    class Horse(models.Model):  # type: ignore[misc]
        name = models.CharField(max_length=20, unique=True)
        born = models.DateField()

        class Meta:
            app_label = "stable"

    if Horse._meta.db_table in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.delete_model(Horse)
    with connection.schema_editor() as editor:
        editor.create_model(Horse)
    born = datetime.date(2020, 2, 29)
    with transaction.atomic():
        Horse.objects.create(name="Rex", born=born)
    try:
        with transaction.atomic():
            Horse.objects.create(name="Max", born=born)
            Horse.objects.create(name="Max", born=born)
    except IntegrityError:
        pass
    else:
        raise AssertionError("the same name twice")
    check([*Horse.objects.filter(born__year=2020).values_list("name", "born")], [("Rex", born)])
    connection.close()


Program = Callable[[str], None]
PROGRAMS: tuple[tuple[Program, tuple[str, ...]], ...] = (  # with the transports that each knows
    (libsql, ("http", "file")),
    (libsql_client, ("http", "ws", "file")),
    (sqlalchemy_libsql, ("http", "file")),
    (django_libsql, ("ws",)),
)


def run(urls: dict[str, str]) -> Outcomes:
    """Run the programs, each over the transports that it knows; return what became of them."""
    found: Outcomes = {}
    for program, known in PROGRAMS:
        for transport in sorted(urls):
            name = f"{program.__name__}[{transport}]"
            if transport not in known:
                found[name] = SKIPPED, f"knows {' and '.join(known)} only"
                continue
            url = urls[transport]
            if transport == "file" and program is libsql_client:
                url = f"file:{url}"
            try:
                program(url)
            except Exception as error:
                text = (str(error) or "no text").splitlines()[0]
                found[name] = FAILED, f"{type(error).__name__}: {text[:300]}"
            else:
                found[name] = PASSED, ""
    return found


def main() -> None:
    """Run what is asked for, and write down what became of it."""
    parser = argparse.ArgumentParser(prog="python -m tools.compliance.libsql_run", description=__doc__)
    parser.add_argument("record", type=Path, help="a file for what became of each program, as JSON")
    for transport in ("http", "ws", "file"):
        parser.add_argument(f"--{transport}")
    asked = vars(parser.parse_args())
    record = asked.pop("record")
    warnings.simplefilter("ignore")
    record.write_text(json.dumps(run({name: url for name, url in asked.items() if url}), indent=1))


if __name__ == "__main__":
    main()
