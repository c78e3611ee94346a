"""sqlite-vec-client, a program of PyPI for vectors, runs unchanged and finds the nearest vectors."""

import random
import struct
from contextlib import closing
from math import hypot

import pytest

from bedrockish import dbapi

base = pytest.importorskip("sqlite_vec_client.base")
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def nearest(vectors: dict[str, list[float]], to: list[float], count: int) -> list[tuple[str, float]]:
    """Return the texts of the nearest vectors, with their cosine distance."""
    found = [
        (text, 1 - sum(a * b for a, b in zip(one, to, strict=True)) / hypot(*one) / hypot(*to))
        for text, one in vectors.items()
    ]
    return [(text, round(distance, 4)) for text, distance in sorted(found, key=lambda one: one[1])[:count]]


def test_sqlite_vec_client_finds_the_nearest_texts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "sqlite3", dbapi)
    draw = random.Random(5)
    vectors = {f"{WORDS[i % 8]} {i}": [draw.random() for _ in range(8)] for i in range(40)}
    texts = [*vectors]
    with base.SQLiteVecClient(table="documents", db_path=url) as client:

        def check(to: list[float], count: int) -> None:
            found = client.similarity_search(embedding=to, top_k=count)
            assert [(text, round(distance, 4)) for _, text, distance in found] == nearest(vectors, to, count)

        client.create_table(dim=8, distance="cosine", unique_text=True)
        metadata = [{"n": i % 4} for i in range(40)]
        ids = client.add(  # by default the client guesses the new ids
            texts=texts, embeddings=[*vectors.values()], metadata=metadata, on_conflict="ignore"
        )
        check(vectors[texts[7]], 5)
        client.update(ids[7], text="another", embedding=vectors[texts[3]])
        client.delete(ids[3])
        vectors["another"] = vectors.pop(texts[3])
        del vectors[texts[7]]
        check(vectors["another"], 3)
        assert (client.count(), client.get(ids[7])[1], client.get(ids[3])) == (39, "another", None)
        with client.transaction():
            client.add(texts=["last"], embeddings=[[1.0] * 8])
        vectors["last"] = [1.0] * 8
        check([1.0] * 8, 2)
        # otherwise other tests could not dump the database into one of sqlite3
        for table in ("documents_vec", "documents"):
            client.connection.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize("dimensions", [16, 768, 3072])
def test_vectors_of_a_usual_length_are_stored_changed_and_found(url: str, table: str, dimensions: int) -> None:
    """For the first vector, vec0 writes a chunk with room for 1024: for 16 dimensions 64 KiB, for 3072 12 MiB."""

    def vector(first: float) -> bytes:
        return struct.pack(f"{dimensions}f", first, *[0.0] * (dimensions - 1))

    insert = f"INSERT INTO {table}v(rowid, e) VALUES (?, ?)"
    nearest = f"SELECT rowid, distance FROM {table}v WHERE e MATCH ? AND k = 2"
    with closing(dbapi.connect(url, isolation_level=None)) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE {table}v USING vec0(e float[{dimensions}])")
        connection.execute(insert, (1, vector(1)))
        assert connection.execute(nearest, (vector(0),)).fetchall() == [(1, 1.0)]
        connection.execute(f"DELETE FROM {table}v")
        connection.execute("BEGIN")
        connection.execute(insert, (2, vector(2)))
        connection.execute(insert, (3, vector(3)))
        assert connection.execute(nearest, (vector(2),)).fetchall() == [(2, 0.0), (3, 1.0)]
        connection.execute("COMMIT")
        connection.execute(f"UPDATE {table}v SET e = ? WHERE rowid = 2", (vector(9),))
        connection.executemany(insert, [(number, vector(number)) for number in range(20, 60)])
        assert connection.execute(nearest, (vector(9.5),)).fetchall() == [(2, 0.5), (3, 6.5)]
        connection.execute(f"DROP TABLE {table}v")


def test_chunk_that_is_too_long_is_refused_with_a_way_out(url: str, table: str) -> None:
    with closing(dbapi.connect(url, isolation_level=None)) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE {table}v USING vec0(e float[8192], chunk_size=4096)")
        with pytest.raises(dbapi.DataError, match="smaller chunk_size"):
            connection.execute(f"INSERT INTO {table}v(rowid, e) VALUES (1, zeroblob(32768))")
        connection.execute(f"DROP TABLE {table}v")


def test_long_values_next_to_vectors_and_long_vectors_as_text_are_accepted(url: str, table: str) -> None:
    values = ["t" * 70_000, "a" * 70_000, b"b" * 70_000]
    with closing(dbapi.connect(url, isolation_level=None)) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE {table}v USING vec0(e float[2], t TEXT, +a TEXT, +b BLOB)")
        connection.execute(f"INSERT INTO {table}v(rowid, e, t, a, b) VALUES (1, '[1, 2]', ?, ?, ?)", values)
        connection.execute(f"UPDATE {table}v SET t = t || 'x', a = a || 'x', b = CAST(a AS BLOB)")
        lengths = f"SELECT length(t), length(a), length(b) FROM {table}v"
        assert connection.execute(lengths).fetchall() == [(70_001, 70_001, 70_000)]
        connection.execute(f"DROP TABLE {table}v")
        assert connection.execute("SELECT length(vec_to_json(zeroblob(400000)))").fetchall() == [(900_001,)]


def test_transaction_goes_on_after_an_auxiliary_value_of_another_type(url: str, table: str) -> None:
    with closing(dbapi.connect(url, isolation_level=None)) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE {table}v USING vec0(e float[2], +price FLOAT)")
        connection.execute(f"INSERT INTO {table}v(rowid, e, price) VALUES (1, '[1, 2]', 1.5), (2, '[1, 2]', 2.5)")
        for begin, end in (("SELECT 1", "SELECT 1"), ("BEGIN", "COMMIT")):
            connection.execute(begin)
            with pytest.raises(dbapi.OperationalError, match="CAST the value AS REAL"):
                connection.execute(f"UPDATE {table}v SET price = 10")
            with pytest.raises(dbapi.Error, match="column price has type FLOAT, but INTEGER"):
                connection.execute(f"INSERT INTO {table}v(rowid, e, price) VALUES (3, '[1, 2]', 10)")
            connection.execute(f"UPDATE {table}v SET price = price + 10 WHERE rowid = 1")
            connection.execute(end)
        found = connection.execute(f"SELECT rowid, price FROM {table}v ORDER BY rowid").fetchall()
        assert found == [(1, 21.5), (2, 2.5)]
        connection.execute("BEGIN")
        connection.execute(f"CREATE TABLE {table}made(x)")
        with pytest.raises(dbapi.Error, match="column price has type FLOAT, but INTEGER"):
            connection.execute(f"INSERT INTO {table}v(rowid, e, price) VALUES (3, '[1, 2]', 10)")
        connection.execute("COMMIT")
        assert connection.execute(f"SELECT rowid, price FROM {table}v ORDER BY rowid").fetchall() == found
        connection.execute(f"DROP TABLE {table}made")
        connection.execute(f"DROP TABLE {table}v")
