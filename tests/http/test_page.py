"""The dashboard in a real headless browser: what people see, under load, with a conflict, and with a dead node."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from bedrockish import connect
from bedrockish.client.blocking import Connection
from bedrockish.common.password_hash import hash_password
from bedrockish.errors import ConflictError, OutcomeUnknownError, UnavailableError
from tests.http.browser import Browser, find_browser, open_browser
from tests.http.conftest import Asker
from tools.cluster import LocalCluster

pytestmark = [pytest.mark.browser, pytest.mark.cluster]


class Writers:
    """One writer at each node, all on one row, so that they conflict."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._urls = [cluster.url(index) for index in range(len(cluster.nodes))]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(url,)) for url in self._urls]

    def __enter__(self) -> None:
        with connect(self._urls[0]) as db:
            db.execute("CREATE TABLE IF NOT EXISTS account(id INTEGER PRIMARY KEY, balance INTEGER)")
            db.execute("INSERT OR IGNORE INTO account VALUES (7, 0)")
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, url: str) -> None:
        db: Connection
        with connect(url) as db:
            while not self._over.wait(0.02):
                with suppress(ConflictError, UnavailableError, OutcomeUnknownError):
                    db.execute("UPDATE account SET balance = balance + 1 WHERE id = 7")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with open_browser(program, tmp_path / "profile") as running:
        running.resize(1200, 1000)
        yield running


def open_page(browser: Browser, cluster: LocalCluster) -> Asker:
    port = cluster.nodes[0].http_port
    assert port is not None
    browser.open(f"http://127.0.0.1:{port}/")
    browser.wait("document.querySelector('#state')?.innerText.includes('live')")
    return Asker(port, cluster)


def test_page_follows_the_cluster(browser: Browser, three: LocalCluster) -> None:
    """Figures change, arrows are drawn with the printer's texts, a conflict is named, and a dead node is shown."""
    open_page(browser, three)
    assert browser.text("#cluster") == "seen from A"
    with Writers(three):
        browser.wait("parseFloat(document.querySelector('#rate').innerText) > 0")
        browser.wait("document.querySelectorAll('#diagram [data-kind=commit]:not(.half)').length >= 2")
        browser.wait("document.querySelectorAll('#conflicts tr').length >= 3")
        browser.wait("document.querySelectorAll('#commits li').length >= 3")
        conflict = browser.text("#conflicts tr:nth-child(2)")
        assert "table account" in conflict
        assert "\t7\t" in conflict
        assert "against" in conflict
        assert browser.text("#commits li").startswith(("A", "B", "C"))
        assert ": COMMIT " in browser.text("#commits li")
        vectors = browser.text("#nodes")
        browser.wait(f"document.querySelector('#nodes').innerText !== {vectors!r}")
        keyboard(browser)
        pointer(browser)
        assert browser.text("#summary") == "All 3 nodes are up."
        three.nodes[2].kill()
        browser.wait("document.querySelector('#nodes tr:nth-child(4)').innerText.includes('silent')")
        browser.wait("document.querySelector('#diagram .track.silent')")
        assert browser.text("#summary") == "C does not answer. Commits go on: 2 of 3 voters answer, and 2 are needed."
        three.nodes[2].start()
        browser.wait("document.querySelector('#nodes tr:nth-child(4)').innerText.includes('up')")
    assert browser.errors == []


def keyboard(browser: Browser) -> None:
    """Test that the arrow keys select transactions and messages and show their line, and Escape ends that."""
    browser.run("document.querySelector('#diagram').focus()")
    browser.press("ArrowRight")
    first = browser.text("#said")
    assert "BEGIN" in first
    assert browser.text("#state").endswith("paused")
    browser.press("ArrowDown")
    assert browser.text("#said") != first
    assert browser.text("#talk").count("\n") >= 3
    browser.press("Escape")
    assert browser.text("#said") == ""
    browser.run("document.querySelector('#pause').click()")
    assert browser.text("#state").endswith("live")


def pointer(browser: Browser) -> None:
    """Test that a tap on an arrow shows its line and stops the page for reading."""
    browser.wait(  # the page redraws once a second, and a moment may lack such an arrow
        "(() => { const one = document.querySelector('#diagram [data-kind=approve]'); if (!one) return false;"
        " one.dispatchEvent(new MouseEvent('click')); window.tapped = one.querySelector('title').textContent;"
        " return true })()"
    )
    line = browser.run("window.tapped")
    assert "APPROVE" in line
    assert browser.text("#said") == line
    browser.run("document.querySelector('#pause').click()")


def test_page_fits_a_phone_in_the_dark(browser: Browser, three: LocalCluster) -> None:
    """All elements fit the screen, texts have contrast, and buttons are large enough."""
    browser.resize(360, 740, dark=True)
    open_page(browser, three)
    assert browser.run("document.documentElement.scrollWidth") == 360
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert back == "rgb(17, 20, 23)"
    small = "[...document.querySelectorAll('button, select')].filter(e => e.offsetParent && e.offsetHeight < 32).length"
    assert browser.run(small) == 0
    unnamed = "[...document.querySelectorAll('button, select, input, [role=group], [role=img]')].filter(e =>"
    unnamed += " !(e.innerText || e.labels?.length || e.ariaLabel || e.getAttribute('aria-labelledby'))).length"
    assert browser.run(unnamed) == 0
    assert browser.errors == []


def test_the_page_asks_for_a_password(browser: Browser, tmp_path: Path) -> None:
    users = {"ann": str(hash_password("s/e@cret ü", bytes(16)))}
    cluster = LocalCluster(tmp_path / "asks", ("A",), settings={"users": users})
    cluster.add_http()
    cluster.write_files()
    cluster.login = "ann:s%2Fe%40cret%20%C3%BC@"
    cluster.nodes[0].start()
    try:
        trio.run(cluster.wait_ready, 0)
        browser.open(f"http://127.0.0.1:{cluster.nodes[0].http_port}/")
        browser.wait("document.querySelector('#login') && !document.querySelector('#login').hidden")
        assert browser.run("document.querySelector('#main').hidden")
        fill = "(() => {{ document.querySelector('#user').value = 'ann'; document.querySelector('#token').value = {};"
        fill += " document.querySelector('#login button').click() }})()"
        browser.run(fill.format("'wrong'"))
        browser.wait("document.querySelector('#state').innerText.includes('wrong user or password')")
        browser.run(fill.format("'s/e@cret ü'"))
        browser.wait("document.querySelector('#state').innerText.includes('live')")
        assert browser.text("#summary") == "The only node is up."
        assert browser.run("document.querySelector('#token').value") == ""
        assert not [error for error in browser.errors if "401" not in error]
    finally:
        cluster.stop()


def test_a_page_whose_node_is_gone_says_so(browser: Browser, three: LocalCluster) -> None:
    open_page(browser, three)
    three.nodes[0].kill()
    try:
        browser.wait("document.querySelector('#state').className === 'bad'")
        assert "does not answer" in browser.text("#state")
    finally:
        three.nodes[0].start()
    browser.wait("document.querySelector('#state').innerText.includes('live')")
