"""The web application of ``examples``: it answers while nodes are killed, and keeps each note once."""

import threading
from pathlib import Path

import pytest
import trio

from examples.notes.app import create_app
from tools.cluster import local_cluster

pytestmark = pytest.mark.cluster


def test_notes_are_kept_once_while_nodes_are_killed(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster") as cluster:
        for index in range(3):
            trio.run(cluster.wait_ready, index)
        app = create_app(cluster.url())
        app.testing = False
        try:
            client = app.test_client()
            note = {"author": "Ann", "body": "hello"}
            first = client.post("/notes", json=note, headers={"Idempotency-Key": "k1"})
            assert first.status_code == 201
            again = client.post("/notes", json=note, headers={"Idempotency-Key": "k1"})
            assert (again.status_code, again.json) == (201, first.json)
            assert client.post("/notes", json={"author": "Ann", "body": None}).status_code == 409
            failed: list[tuple[int, str]] = []
            written: list[int] = []

            def write(writer: int) -> None:
                own = app.test_client()
                for number in range(25):
                    key = {"Idempotency-Key": f"{writer}-{number}"}
                    reply = own.post("/notes", json={"author": "Bob", "body": "x"}, headers=key)
                    for _ in range(60):  # as a browser's page would do it
                        if reply.status_code in (503, 504):
                            reply = own.post("/notes", json={"author": "Bob", "body": "x"}, headers=key)
                    if reply.status_code == 201:
                        written.append(number)
                    else:
                        failed.append((reply.status_code, reply.text))

            writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
            for writer in writers:
                writer.start()
            cluster.nodes[0].kill()
            for writer in writers:
                writer.join(240)
            assert failed == []
            assert len(written) == 100
            notes = client.get("/notes?author=Bob").json
            assert notes is not None
            assert len(notes["notes"]) == 100
        finally:
            app.extensions["pool"].close()
