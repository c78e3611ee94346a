"""The shop of ``examples`` on plain SQLite, and on three nodes that are killed one after another while it sells."""

import random
import threading
import uuid
from pathlib import Path

import pytest
import trio

from examples.shop.app import Shop, SoldOutError
from tools.cluster import LocalCluster, local_cluster

PRODUCTS = {f"p{number}": (f"Product {number}", 100 + number, 60) for number in range(6)}


class Buyers:
    """Threads that buy until they are stopped, and record the answers."""

    def __init__(self, urls: list[str]) -> None:
        self.stop = threading.Event()
        self.done: list[str] = []
        self.sold_out: list[str] = []
        self.failed: list[BaseException] = []
        self.threads = [threading.Thread(target=self._buy, args=(n, url)) for n, url in enumerate(urls)]

    def _buy(self, seed: int, url: str) -> None:
        draw = random.Random(seed)
        shop = Shop(url)
        try:
            customers = [shop.sign_up(f"{draw.randrange(12)}@example.org", "Somebody") for _ in range(4)]
            while not self.stop.is_set():
                basket = {sku: draw.randrange(1, 3) for sku in draw.sample(sorted(PRODUCTS), 2)}
                reference = str(uuid.uuid4())
                try:
                    shop.order(draw.choice(customers), basket, reference)
                    self.done.append(reference)
                except SoldOutError:
                    self.sold_out.append(reference)
        except BaseException as error:
            self.failed.append(error)
        finally:
            shop.close()


def check(shop: Shop, buyers: Buyers) -> None:
    """Check that the orders are exactly the confirmed ones, and that stock and lines agree."""
    assert buyers.failed == []
    found = shop.references()
    assert sorted(found) == sorted(buyers.done)
    assert len(set(found)) == len(found)
    for line in shop.report():
        assert line.sold + line.left == PRODUCTS[line.sku][2]
        assert line.revenue == line.sold * PRODUCTS[line.sku][1]


def test_shop_runs_on_plain_sqlite(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    shop.open(PRODUCTS)
    ann = shop.sign_up("ann@example.org", "Ann")
    assert shop.sign_up("ann@example.org", "Ann") == ann
    buyers = Buyers([])
    buyers.done += [shop.order(ann, {"p1": 2, "p2": 3}), shop.order(ann, {"p1": 1})]
    assert shop.order(ann, {"p1": 1}, buyers.done[1]) == buyers.done[1]
    with pytest.raises(SoldOutError):
        shop.order(ann, {"p3": 1, "p1": 60})
    check(shop, buyers)
    shop.close()


@pytest.mark.cluster
def test_shop_sells_while_nodes_are_killed_one_after_another(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster") as cluster:
        wait_all(cluster)
        shop = Shop(url(cluster, 0))
        shop.open(PRODUCTS)
        buyers = Buyers([url(cluster, node) for node in range(3)])
        for thread in buyers.threads:
            thread.start()
        try:
            for node in cluster.nodes:
                sell_some(buyers)
                node.kill()
                sell_some(buyers)
                node.start()
                wait_all(cluster)
            sell_some(buyers)
        finally:
            buyers.stop.set()
            for thread in buyers.threads:
                thread.join(120)
        auditor = Shop(f"{url(cluster, 0)}&read=strict")  # another session sees the last orders at once only so
        check(auditor, buyers)
        assert len(buyers.done) > 20
        auditor.close()
        shop.close()


def url(cluster: LocalCluster, first: int) -> str:
    order = [*cluster.nodes[first:], *cluster.nodes[:first]]
    return f"bedrockish://[{','.join(f'127.0.0.1:{node.port}' for node in order)}]/?timeout=20"


def wait_all(cluster: LocalCluster) -> None:
    for node in range(len(cluster.nodes)):
        trio.run(cluster.wait_ready, node)


def sell_some(buyers: Buyers) -> None:
    """Wait until the shop has tried some more orders, or fails."""
    before = len(buyers.done) + len(buyers.sold_out)
    for _ in range(1200):
        if len(buyers.done) + len(buyers.sold_out) >= before + 6 or buyers.failed:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the shop sells nothing any more")
