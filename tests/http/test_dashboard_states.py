"""The dashboard in the states of a cluster that an operator meets: its texts, its layout, and its pictures.

The pictures are kept in the folder ``DASHBOARD_PICTURES``; docs/images has some of them. The rules of axe-core are
checked if ``AXE`` names its file (``npm install axe-core``).
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import connect
from tests.cluster.story import ready
from tests.forked import program
from tests.http.browser import Browser, find_browser, open_browser
from tests.http.test_page import Writers
from tests.http.test_pictures import rows_of
from tools.cluster import LocalCluster, local_cluster

pytestmark = [pytest.mark.browser, pytest.mark.cluster]

SIZES = {"wide": (1400, 1000), "phone": (420, 900)}
SCHEMES = ("light", "dark")
AXE, PICTURES = os.environ.get("AXE", ""), os.environ.get("DASHBOARD_PICTURES", "")
CUT = """[...document.querySelectorAll('main *')].filter((e) => {
  const style = getComputedStyle(e);
  return e.offsetParent && !e.closest('svg, .clipped') && !e.children.length && e.textContent.trim()
    && style.position !== 'absolute' && style.display !== 'inline' && style.overflowX !== 'visible'
    && e.scrollWidth > e.clientWidth + 1;
}).map((e) => e.textContent.slice(0, 60))"""
WIDE_TABLES = """[...document.querySelectorAll('main table')]
  .filter((e) => e.scrollWidth > e.parentElement.clientWidth + 1).map((e) => e.id)"""
RULES_BROKEN = """axe.run(document).then((found) =>
  found.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 90))]))"""
LEGEND = "[...document.querySelectorAll('#hour-legend li')].map((e) => e.innerText + e.className)"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "three", http=True) as running:
        trio.run(ready, running)
        yield running


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with open_browser(program, tmp_path / "profile") as running:
        running.resize(*SIZES["wide"])
        yield running


def told(cluster: LocalCluster, index: int) -> dict[str, Any]:
    """Return the ``bedrockish status`` of a node."""
    done = program("status", "--json", cluster.url(index, only=True, options="discover=no"))
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == bool(found["troubles"])
    return found


def codes_on(browser: Browser) -> set[str]:
    words = browser.run("[...document.querySelectorAll('#troubles .small')].map((e) => e.textContent.trim())")
    return {text.partition(",")[0] for text in words}


def check(browser: Browser, name: str, folder: Path, said: str) -> None:
    """Check that a page with this text at its top fits and is accessible, and take its pictures."""
    for size, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            browser.resize(width, height, dark=scheme == "dark")
            browser.run("scrollTo(0, 0)")
            browser.wait(f"document.querySelector('#summary').innerText.startsWith({said!r})")
            browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            picture = folder / f"dashboard-{name}-{size}-{scheme}.png"
            browser.screenshot(picture)
            assert browser.text("#summary").startswith(said), picture.name
            assert rows_of(picture)[2] > 200, picture.name
            assert browser.run("document.documentElement.scrollWidth") == width, picture.name
            assert browser.run(WIDE_TABLES) == [], picture.name
            assert browser.run(CUT) == [], picture.name
            if AXE:
                browser.run(Path(AXE).read_text() + "; 0")
                assert browser.run(RULES_BROKEN) == [], picture.name
    browser.resize(*SIZES["wide"])


def test_dashboard_agrees_with_status_in_each_state(browser: Browser, cluster: LocalCluster, tmp_path: Path) -> None:
    folder = Path(PICTURES) if PICTURES else tmp_path
    port = cluster.nodes[0].http_port
    with Writers(cluster):
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("document.querySelector('#summary')?.innerText === 'All 3 nodes are up.'")
        browser.wait("parseFloat(document.querySelector('#rate').innerText) > 0")
        browser.wait("document.querySelectorAll('#hour-commits .line').length === 3", 60)
        assert codes_on(browser) == set()
        assert browser.run("document.querySelector('#wrong').hidden")
        colours = browser.run(LEGEND)
        assert colours == ["At0", "Bt1", "Ct2"]
        check(browser, "healthy", folder, "All 3 nodes are up.")

        third = cluster.nodes[1].process
        assert third is not None
        third.send_signal(signal.SIGSTOP)
        try:
            browser.wait("document.querySelector('#troubles')?.innerText.includes('node_away')")
            expected = "B does not answer. Commits go on: 2 of 3 voters answer, and 2 are needed."
            browser.wait(f"document.querySelector('#summary').innerText === {expected!r}")
            assert "To do: start it, or repair the network" in browser.text("#troubles")
            assert codes_on(browser) >= {one["code"] for one in told(cluster, 0)["troubles"]} - {
                "safe_time",
                "in_doubt",
            }
            time.sleep(6)  # the page requests the hour every five seconds
            later = browser.run(
                "[...document.querySelectorAll('#hour-legend li')].map((e) => e.innerText + e.className)"
            )
            assert later == colours, "a dead node keeps its colour, and others do not get it"
            assert browser.run("document.querySelectorAll('#hour-commits .line').length") == 3
            last_of_b = [row[-1] for row in rows_shown(browser, "slow") if row[1] == "B"]
            assert not [one for one in last_of_b if one.endswith(" ms ago")], "its age grows while B is silent"
            check(browser, "one-dead", folder, expected)
            cluster.nodes[2].kill()
            browser.wait("document.querySelector('#summary').innerText.startsWith('Nothing can be committed')")
            browser.wait("document.querySelector('#troubles .grave')?.innerText.includes('1 voter is in reach')")
            assert "no_quorum" in {one["code"] for one in told(cluster, 0)["troubles"]}
            check(browser, "no-quorum", folder, "Nothing can be committed: 1 of 3 voters answers")
            cluster.nodes[0].kill()
            browser.wait("document.querySelector('#main').classList.contains('stale')")
            assert browser.text("#summary").startswith("A does not answer this page. Everything below is ")
            kept = browser.text("#nodes")
            time.sleep(3)
            assert browser.text("#nodes") == kept, "old values are told to be old, and are not replaced"
            assert "this node does not answer" not in kept
            check(browser, "own-dead", folder, "A does not answer this page. Everything below is ")
        finally:
            third.send_signal(signal.SIGCONT)
        for index in (0, 2):
            cluster.nodes[index].start()
        trio.run(ready, cluster)
        browser.wait("document.querySelector('#state').innerText.includes('live')", 60)
    assert not [error for error in browser.errors if "ERR_" not in error]


def test_rows_of_an_earlier_statement_do_not_stay_under_an_error(browser: Browser, cluster: LocalCluster) -> None:
    browser.open(f"http://127.0.0.1:{cluster.nodes[0].http_port}/")
    browser.wait("document.querySelector('#state')?.innerText.includes('live')")
    for sql, rows in (("SELECT 1 AS one", 2), ("SELECT nonsense", 0)):
        browser.run(f"document.querySelector('#sql').value = {sql!r}")
        browser.run("document.querySelector('#console button').click()")
        browser.wait("!['', 'running…'].includes(document.querySelector('#console-said').innerText)")
        browser.wait(f"document.querySelectorAll('#result tr').length === {rows}")


def test_open_transaction_tells_how_long_it_is_idle(browser: Browser, cluster: LocalCluster) -> None:
    browser.open(f"http://127.0.0.1:{cluster.nodes[0].http_port}/")
    with connect(cluster.url(1)) as db:
        db.execute("CREATE TABLE t(x)")
        with db.transaction() as transaction:
            transaction.execute("INSERT INTO t VALUES (1)")
            browser.wait("document.querySelectorAll('#open button').length === 1")
            _, node, _, _, idle, changes, statement, _ = rows_shown(browser, "open")[0]
    assert (node, changes, statement) == ("B", "1", "INSERT INTO t VALUES (1)")
    assert idle.endswith(("ms", "s"))
    assert idle != "busy"


def rows_shown(browser: Browser, table: str) -> list[list[str]]:
    """Return the texts of a table's rows, without its head."""
    found = browser.run(
        f"[...document.querySelectorAll('#{table} tr')].map((row) => [...row.cells].map((one) => one.innerText))"
    )
    return [row for row in found[1:] if len(row) > 1]
