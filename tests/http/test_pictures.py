"""The dashboard's newer parts in a real browser: their content, effects, refusals and pictures."""

import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bedrockish import connect
from bedrockish.errors import UnavailableError
from tests.http.browser import Browser, find_browser, open_browser
from tests.http.conftest import Asker
from tools.cluster import LocalCluster

pytestmark = [pytest.mark.browser, pytest.mark.cluster]

EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\'&quot;'
SLOW = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1500000) SELECT count(*) FROM n"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with open_browser(program, tmp_path / "profile") as running:
        running.resize(1200, 2200)
        yield running


def port(cluster: LocalCluster) -> int:
    found = cluster.nodes[0].http_port
    assert found is not None
    return found


def open_dashboard(browser: Browser, cluster: LocalCluster) -> None:
    browser.open(f"http://127.0.0.1:{port(cluster)}/")
    browser.wait("document.querySelector('#state')?.innerText.includes('live')")
    browser.wait("document.querySelectorAll('#sizes tr').length === 4")


def run(browser: Browser, sql: str) -> str:
    """Run a statement in the console, and return the console's answer."""
    browser.run(f"document.querySelector('#sql').value = {sql!r}")
    browser.run("document.querySelector('#console button').click()")
    browser.wait("document.querySelector('#console-said').innerText !== 'running…'")
    return browser.text("#console-said")


def rows_of(picture: Path) -> tuple[int, int, int]:
    """Return width and height of a PNG, and how many different lines of dots it has."""
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind) in ((8, 2), (8, 6))
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(packed)
    line = 1 + width * (3 if kind == 2 else 4)
    assert len(raw) == line * height
    return width, height, len({raw[start : start + line] for start in range(0, len(raw), line)})


def test_pictures_are_not_empty(browser: Browser, three: LocalCluster, tmp_path: Path) -> None:
    """Of both pages, wide and narrow, light and dark: something is on them, and no script has failed."""
    browser.screenshot(tmp_path / "blank.png")
    assert rows_of(tmp_path / "blank.png")[2] < 5
    open_dashboard(browser, three)
    for name, width, height in (("wide", 1200, 2200), ("phone", 360, 3600)):
        browser.resize(width, height, dark=name == "phone")
        browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        browser.screenshot(tmp_path / f"{name}.png")
        shown = rows_of(tmp_path / f"{name}.png")
        assert shown[:2] == (width, height)
        assert shown[2] > 300
        assert browser.run("document.documentElement.scrollWidth") == width
        is_wide = "(e) => e.scrollWidth > e.parentElement.clientWidth + 1"
        tables = f"[...document.querySelectorAll('main table')].filter({is_wide}).map((e) => e.id)"
        assert browser.run(tables) == [], name
    assert browser.errors == []


def test_an_open_transaction_is_ended_with_two_clicks(browser: Browser, three: LocalCluster) -> None:
    with connect(three.url(0)) as db, connect(three.url(2, only=True)) as other:
        db.execute("CREATE TABLE IF NOT EXISTS pressed(id INTEGER PRIMARY KEY)")
        other.execute("SELECT count(*) FROM pressed", read="strict")
        other.execute("BEGIN")
        other.execute("INSERT INTO pressed VALUES (1)")
        open_dashboard(browser, three)
        browser.wait("document.querySelector('#open button')")
        assert "INSERT INTO pressed VALUES (1)" in browser.text("#open")
        press = "document.querySelector('#open button').click()"
        browser.run(press)
        assert browser.text("#open button") == "Really?"
        browser.run(press)
        browser.wait("document.querySelector('#open-said').innerText.includes('was ended')")
        browser.wait("document.querySelector('#open').innerText.includes('none')")
        with pytest.raises(UnavailableError, match="an operator has ended"):
            other.execute("COMMIT")
    assert browser.errors == []


def test_the_console_reads_and_nothing_else(browser: Browser, three: LocalCluster) -> None:
    """The console shows exact values, the first rows of a large result and errors, and changes nothing."""
    with connect(three.url(0)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS looked(a)")
    open_dashboard(browser, three)
    said = run(browser, "SELECT 9223372036854775807 AS big, NULL AS n, x'00ff' AS b, 'a' || char(10) || 'b' AS t")
    assert said.startswith("1 row, ")
    assert browser.text("#result").split() == [
        "big",
        "n",
        "b",
        "t",
        "9223372036854775807",
        "NULL",
        "blob",
        "AP8=",
        "a",
        "b",
    ]
    assert run(browser, "SELECT 1 AS one WHERE 0").startswith("0 rows")
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    assert run(browser, many).startswith("the first 500 rows")
    assert browser.run("document.querySelectorAll('#result tr').length") == 501
    for wrong in ("INSERT INTO looked VALUES (1)", "DROP TABLE looked", "DELETE FROM looked RETURNING 1"):
        assert "row" not in run(browser, wrong)
        assert browser.run("document.querySelector('#console-said').className").endswith("bad")
    assert "no such table: nowhere" in run(browser, "SELECT * FROM nowhere")
    with connect(three.url(0)) as db:
        assert db.execute("SELECT count(*) FROM looked").value() == 0
    assert [error for error in browser.errors if "400" not in error] == []


def test_names_and_values_are_text_and_never_html(browser: Browser, three: LocalCluster) -> None:
    """In every part of both pages: tables, slow statements, open transactions, conflicts, the console, answers."""
    quoted = '"' + EVIL.replace('"', '""') + '"'
    with connect(three.url(0)) as db, connect(three.url(1, only=True)) as other:
        db.execute(f"CREATE TABLE IF NOT EXISTS {quoted}({quoted} PRIMARY KEY)")
        db.execute(f"INSERT INTO {quoted} VALUES (?)", [EVIL])
        db.execute(f"SELECT 1 AS {quoted} FROM ({SLOW})")  # texts are shown without values and comments
        other.execute(f"SELECT count(*) FROM {quoted}", read="strict")
        other.execute("BEGIN")
        other.execute(f"UPDATE {quoted} SET {quoted} = {quoted} || 1")
        open_dashboard(browser, three)
        browser.wait("document.querySelector('#open').innerText.includes('onerror')")
        browser.wait("document.querySelector('#slow').innerText.includes('onerror')")
        assert run(browser, f"SELECT * FROM {quoted}").startswith("1 row")
        assert EVIL in browser.text("#result")
        assert "onerror" in run(browser, f'SELECT * FROM {quoted[:-1]} and more"')
        other.execute("ROLLBACK")
    time.sleep(1)
    assert browser.run("window.pwned === undefined && !document.querySelector('main img')")
    assert [error for error in browser.errors if "400" not in error] == []


def test_a_foreign_page_reads_and_ends_nothing(browser: Browser, three: LocalCluster) -> None:
    """A page of another origin, in a real browser, can send no query in a URL, no command, and read no stream."""
    with connect(three.url(0)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS looked(a)")
    before = Asker(port(three), three)("/status").json["counts"]["executions"]
    browser.open(f"http://127.0.0.1:{three.nodes[1].http_port}/livez")  # another port is another origin
    browser.wait("document.body.innerText.includes('alive')")
    there = f"http://127.0.0.1:{port(three)}"
    for place in ("/db/query?sql=SELECT+1", "/db/stream?sql=SELECT+1"):
        fetched = f"fetch({there + place!r}).then((r) => r.text()).catch((e) => 'refused')"
        assert browser.run(fetched) == "refused"
        blind = f"fetch({there + place!r}, {{mode: 'no-cors'}}).then((r) => r.type).catch((e) => 'refused')"
        assert browser.run(blind) in ("opaque", "refused")
        image = f"const i = new Image(); i.onload = i.onerror = (e) => done(e.type); i.src = {there + place!r}"
        assert browser.run(f"new Promise((done) => {{ {image} }})") == "error"
    posted = f"fetch('{there}/transactions/end', {{method: 'POST', mode: 'no-cors', body: '{{}}'}}).then((r) => r.type)"
    assert browser.run(posted + ".catch((e) => 'refused')") in ("opaque", "refused")
    after = Asker(port(three), three)("/status").json["counts"]["executions"]
    assert after == before
