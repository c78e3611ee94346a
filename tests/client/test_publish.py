"""Publishing: the sent messages, and failures of a webhook, a broker and a place."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from bedrockish.cli.main import main
from bedrockish.errors import UnavailableError, UsageError
from bedrockish.transfer.publish import Message, Place, Webhook, messages_of
from bedrockish.transfer.publish_kafka import Kafka, read_options
from bedrockish_journal.feed.change_feed import Committed, Cursor
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change

CLOCK = 1_700_000_000_000 << 22
MESSAGE = Message("1.A:1", "t", "k", {"op": "c"})


def test_messages_have_debeziums_shape() -> None:
    changes = (
        Change("t", ("id", "v"), INSERT, 7, 7, None, (7, b"x")),
        Change("t", ("id", "v"), UPDATE, 7, 8, (7, b"x"), (8, float("inf"))),
        Change("w", ("a", "b"), DELETE, None, None, (1, "k"), None),
    )
    makers, users = ("one", "two", None), ("ann", None)
    commit = Committed(
        Cursor(CLOCK, "B"), CLOCK, "B", ("A", 12), "one", ("two",), "rows", changes, (), {}, makers, users
    )
    found = list(messages_of(commit, "shop", {"w": ["b"]}.get))  # type: ignore[arg-type]
    assert [one.id for one in found] == [f"{CLOCK}.B:{number}" for number in (1, 2, 3)]
    assert [one.key for one in found] == ['{"rowid": 7}', '{"rowid": 7}', '{"b": "k"}']
    first, second, third = (one.value for one in found)
    assert (first["op"], first["before"], first["after"]) == ("c", None, {"id": 7, "v": {"base64": "eA=="}})
    assert second["after"] == {"id": 8, "v": {"float": "inf"}}
    assert (third["op"], third["after"], third["source"]["command"]) == ("d", None, None)
    assert [one["source"]["user"] for one in (first, second, third)] == ["ann", None, None]
    assert [one["transaction"]["data_collection_order"] for one in (first, second, third)] == [1, 2, 1]
    assert (first["ts_ms"], first["source"]["name"], first["source"]["tick"]) == (1_700_000_000_000, "shop", 12)
    schema = Committed(Cursor(CLOCK, "B"), CLOCK, "B", ("B", 1), "c", (), "schema", (), ("CREATE TABLE t(a)",), {})
    [one] = messages_of(schema, "shop", lambda _table: ())
    assert (one.table, one.key, one.value["ddl"]) == (None, None, ["CREATE TABLE t(a)"])


class Answers(BaseHTTPRequestHandler):
    """Answers what it is told to."""

    status: ClassVar[int] = 200
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(b"because " * 1000)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_answers_of_a_webhook(url: str) -> None:
    hook = Webhook(url, b"")
    Answers.bodies.clear()
    for status in (200, 201, 299):
        Answers.status = status
        hook.deliver([MESSAGE])
    for status in (408, 425, 429, 500, 503):
        Answers.status = status
        with pytest.raises(UnavailableError, match=f"answers {status}.*because"):
            hook.deliver([MESSAGE])
    for status in (301, 307, 400, 404, 410):
        Answers.status = status
        with pytest.raises(UsageError, match=f"answers {status}.*nothing is lost"):
            hook.deliver([MESSAGE])
    assert len(Answers.bodies) == 13, "no redirect is followed"
    assert json.loads(Answers.bodies[0]) == {"messages": [{"id": "1.A:1", "op": "c"}]}


def test_unreachable_webhook_and_broker_raise_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        Webhook("http://127.0.0.1:1/", b"").deliver([MESSAGE])
    options = {"message.timeout.ms": "300", "socket.connection.setup.timeout.ms": "1000"}
    with pytest.raises(UnavailableError, match="Kafka has not taken the messages"):
        Kafka("127.0.0.1:1", "shop", options).deliver([MESSAGE])
    with pytest.raises(UsageError, match="Kafka cannot be used so"):
        Kafka("127.0.0.1:1", "shop", {"no.such.option": "1"})
    with pytest.raises(UsageError, match="Kafka cannot be used so"):
        Kafka("127.0.0.1:1", "shop", {"acks": "many"})
    file = tmp_path / "options"
    file.write_text("# TLS\n security.protocol = SSL \n\nssl.key.password=a = b\n")
    assert read_options(file) == {"security.protocol": "SSL", "ssl.key.password": "a = b"}
    for wrong in ("what", "= 1", "A b = 1"):
        file.write_text(wrong)
        with pytest.raises(UsageError, match=r"line 1 of .* is no option"):
            read_options(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read_options(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_options(tmp_path)


def test_a_place(tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    with place.held() as cursor:
        assert cursor is None
        place.write("7.A")
        with pytest.raises(UsageError, match="another program"), place.held():
            pass
    with place.held() as cursor:
        assert cursor == "7.A"
    for wrong in (b"what is this", b"\xff\xfe", b"7.A\n8.B"):
        (tmp_path / "place").write_bytes(wrong)
        with pytest.raises(UsageError, match="is no place"), place.held():
            pass
    for path in (tmp_path, tmp_path / "no" / "such"):
        with pytest.raises(UsageError, match=r"the place .* cannot be"), Place(path).held():
            pass


def test_a_new_place_begins_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes keep a week; what was before is taken from a copy, which says where the changes go on."""
    began: list[str | None] = []

    async def record(_url: str, _sink: object, place: Place, cursor: str | None, *_: object) -> None:
        began.append(cursor)
        place.write("9.B")

    monkeypatch.setattr("bedrockish.cli.publish._publish", record)
    command = ["publish", "bedrockish://h", "--to", "http://127.0.0.1:1/", "--place", str(tmp_path / "place")]
    for words in (["--after", "7.A"], ["--after", "7.A"], []):
        assert CliRunner().invoke(main, [*command, *words]).exit_code == 0
    assert began == ["7.A", "9.B", "9.B"]
    wrong = CliRunner().invoke(main, [*command, "--after", "yesterday"])
    assert "'yesterday' is not a cursor such as" in wrong.output


@pytest.mark.parametrize(
    "to",
    [
        "",
        "ftp://x/y",
        "kafka://x",
        "kafka://x/",
        "kafka://x/a/b",
        "https://",
        "http://[",
        "http://u:p@x/",
        "http://x:y/",
    ],
)
def test_publish_refuses_unsupported_targets(to: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["publish", "bedrockish://127.0.0.1:1", "--to", to, "--place", str(tmp_path / "p")])
    assert done.exit_code == 2
    assert done.output.startswith("error: ")
    assert not list(tmp_path.iterdir())
