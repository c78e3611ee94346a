"""The shop: what its web pages would call. Nothing here knows which database it is, but for the URL.

python -m examples.shop.app sqlite:///shop.db
python -m examples.shop.app "bedrockish://[127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403]/"
"""

import random
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple, TypeVar

from sqlalchemy import create_engine, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from examples.shop.models import Base, Customer, Line, Order, Product

T = TypeVar("T")
TRIES = 30
PAUSE_S_MAX = 1.0


class SoldOutError(Exception):
    """Raised when there is not enough of a product left. Nothing was ordered."""


class Sold(NamedTuple):
    """A line of the report."""

    sku: str
    sold: int
    revenue: int
    left: int


class Shop:
    """The shop on one database."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url)
        self._session = sessionmaker(self.engine)

    def transaction(self, work: Callable[[Session], T]) -> T:
        """Do some work in a transaction, and again if the database could not do it just now.

        The work first looks whether it is done already, so that a repetition is safe even if the outcome of the first
        run is unknown.
        """
        for attempt in range(TRIES):
            try:
                with self._session.begin() as session:
                    return work(session)
            except OperationalError:
                if attempt == TRIES - 1:
                    raise
                time.sleep(random.uniform(0, min(PAUSE_S_MAX, 0.02 * 2**attempt)))
        raise AssertionError("the last try returns or raises")

    def open(self, products: Mapping[str, tuple[str, int, int]]) -> None:
        """Make the tables, and put products (title, price, stock) on the shelves, unless they are there."""
        Base.metadata.create_all(self.engine)

        def work(session: Session) -> None:
            for sku, (title, price, stock) in products.items():
                if session.get(Product, sku) is None:
                    session.add(Product(sku=sku, title=title, price=price, stock=stock))

        self.transaction(work)

    def sign_up(self, email: str, name: str) -> int:
        """Return the number of a customer, who is new or has signed up before."""

        def work(session: Session) -> int:
            customer = session.scalar(select(Customer).where(Customer.email == email))
            if customer is None:
                customer = Customer(email=email, name=name, joined=datetime.now())
                session.add(customer)
                session.flush()
            return customer.id

        return self.transaction(work)

    def order(self, customer: int, basket: Mapping[str, int], reference: str | None = None) -> str:
        """Order what is in the basket; return the order's reference.

        Raises:
            SoldOutError: there is not enough of something; nothing was ordered.
        """
        reference = reference or str(uuid.uuid4())

        def work(session: Session) -> str:
            if session.get(Order, reference) is not None:
                return reference
            order = Order(reference=reference, customer_id=customer, placed=datetime.now())
            session.add(order)
            for sku, quantity in basket.items():
                product = session.get_one(Product, sku)
                if product.stock < quantity:
                    raise SoldOutError(f"there are {product.stock} of {product.title} left, not {quantity}")
                product.stock -= quantity
                order.lines.append(Line(sku=sku, quantity=quantity, price=product.price))
            return reference

        return self.transaction(work)

    def report(self) -> list[Sold]:
        """Return the sales and the stock of each product."""

        def work(session: Session) -> list[Sold]:
            statement = (
                select(
                    Product.sku,
                    func.coalesce(func.sum(Line.quantity), 0),
                    func.coalesce(func.sum(Line.quantity * Line.price), 0),
                    Product.stock,
                )
                .outerjoin(Line, Line.sku == Product.sku)
                .group_by(Product.sku)
                .order_by(Product.sku)
            )
            return [Sold(*row) for row in session.execute(statement)]

        return self.transaction(work)

    def references(self) -> list[str]:
        """Return the references of all orders."""
        return self.transaction(lambda session: list(session.scalars(select(Order.reference))))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def main() -> None:
    """Open the shop, sell a little, and print the report."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m examples.shop.app URL\n\n{__doc__}")
    shop = Shop(sys.argv[1])
    shop.open({"tea": ("A tin of tea", 750, 100), "cup": ("A cup", 1200, 40)})
    for name in ("Ann", "Bob"):
        customer = shop.sign_up(f"{name.lower()}@example.org", name)
        shop.order(customer, {"tea": 2, "cup": 1})
    for sold in shop.report():
        print(f"{sold.sku:5} sold {sold.sold:4}  for {sold.revenue / 100:8.2f}  left {sold.left:4}")
    shop.close()


if __name__ == "__main__":
    main()
