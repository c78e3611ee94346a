"""How often Django's transactions conflict although their data have nothing in common: twelve clients at three nodes.

Each transaction loads a customer's orders with what belongs to them as Django does it, adds an item and changes an
order's total, in ``transaction.atomic()``. Tables, customers and clients are those of ``tools.scenarios.joins``.

    tools/bench django --seconds 5
"""

import argparse
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from bedrockish.errors import ConflictError
from tools.cluster import SOURCES
from tools.scenarios.joins import CLIENTS, CUSTOMERS, Bench, Tally, nodes_of, show

NODES = 3
_numbers = itertools.count(2 * 10**9)


def configure(urls: list[str]) -> dict[str, Callable[[str, int], list[Any]]]:
    """Let Django use the nodes, each as a database of its own; return what loads a customer's orders, by its name."""
    databases = {f"node{number}": {"ENGINE": "bedrockish.django", "NAME": url} for number, url in enumerate(urls)}
    settings.configure(DATABASES={**databases, "default": databases["node0"]}, INSTALLED_APPS=[], USE_TZ=True)
    django.setup()
    from django.db import models

    class Order(models.Model):  # type: ignore[misc]
        """An order."""

        customer_id = models.IntegerField()
        total = models.IntegerField(default=0)

        class Meta:
            app_label, db_table, managed = "bench", "orders", False

    class Product(models.Model):  # type: ignore[misc]
        """A product."""

        name = models.TextField()

        class Meta:
            app_label, db_table, managed = "bench", "products", False

    class Item(models.Model):  # type: ignore[misc]
        """An item of an order."""

        order = models.ForeignKey(Order, models.CASCADE, related_name="items")
        product = models.ForeignKey(Product, models.SET_NULL, null=True)
        qty = models.IntegerField()

        class Meta:
            app_label, db_table, managed = "bench", "items", False

    def finish(name: str, orders: list[Any]) -> list[Any]:
        order = random.choice(orders)
        Item.objects.using(name).create(id=next(_numbers), order_id=order.pk, product_id=order.pk, qty=1)
        Order.objects.using(name).filter(pk=order.pk).update(total=models.F("total") + 1)
        return orders

    def select_related(name: str, customer: int) -> list[Any]:
        found = Item.objects.using(name).select_related("order", "product").filter(order__customer_id=customer)
        return finish(name, [item.order for item in found if item.product is not None])

    def first_page(name: str, customer: int) -> list[Any]:
        found = Item.objects.using(name).select_related("order", "product").filter(order__customer_id=customer)
        return finish(name, [item.order for item in found.order_by("order_id", "id")[:5]])

    def prefetch_related(name: str, customer: int) -> list[Any]:
        found = Order.objects.using(name).filter(customer_id=customer).prefetch_related("items__product")
        assert all(item.product.name for order in found for item in order.items.all())
        return finish(name, list(found))

    def exists(name: str, customer: int) -> list[Any]:
        full = Item.objects.using(name).filter(order=models.OuterRef("pk"), qty__gt=0)
        found = Order.objects.using(name).filter(models.Exists(full), customer_id=customer)
        return finish(name, list(found))

    return {one.__name__: one for one in (select_related, first_page, prefetch_related, exists)}


def work(load: Callable[[str, int], list[Any]], number: int, until: float, tally: Tally) -> None:
    """Run one client's transactions, each again until it is committed."""
    from django.db import OperationalError, connections, transaction

    luck, name = random.Random(number), f"node{number % NODES}"
    try:
        while time.monotonic() < until:
            customer = 1 + number + CLIENTS * luck.randrange(CUSTOMERS // CLIENTS)
            began, retries = time.monotonic(), 0
            while True:
                try:
                    with transaction.atomic(using=name, durable=True):
                        load(name, customer)
                except OperationalError as error:
                    if getattr(error.__cause__, "code", "") != ConflictError.code:
                        raise
                    retries += 1
                    continue
                break
            with tally.lock:
                tally.done += 1
                tally.retries += retries
                tally.waits.append(time.monotonic() - began)
    finally:
        connections.close_all()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, nodes_of(Path(directory), "", SOURCES) as cluster:
        Bench(cluster)
        loads = configure([cluster.url(number) for number in range(NODES)])
        print(f"{'':36}{'per second':>12}{'retries each':>14}{'p50 ms':>10}{'p99 ms':>10}")
        for name, load in loads.items():
            tally, until = Tally(), time.monotonic() + options.seconds
            threads = [threading.Thread(target=work, args=(load, number, until, tally)) for number in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            show(name, tally, options.seconds)


if __name__ == "__main__":
    main()
