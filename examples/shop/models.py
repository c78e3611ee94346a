"""The tables of the shop: customers, products, and orders with their lines."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """The base of the shop's tables."""


class Customer(Base):
    """A customer who has signed up."""

    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(String(200), unique=True)
    name: Mapped[str] = mapped_column(String(200))
    joined: Mapped[datetime]
    orders: Mapped[list["Order"]] = relationship(back_populates="customer")


class Product(Base):
    """Something to buy. Prices are in cents."""

    __tablename__ = "product"
    __table_args__ = (CheckConstraint("stock >= 0", name="stock"),)

    sku: Mapped[str] = mapped_column(String(20), primary_key=True)
    title: Mapped[str] = mapped_column(String(200))
    price: Mapped[int]
    stock: Mapped[int]


class Order(Base):
    """A customer's purchase. The reference is made by the shop's web page, once for each click."""

    __tablename__ = "purchase"

    reference: Mapped[str] = mapped_column(String(36), primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customer.id"), index=True)
    placed: Mapped[datetime]
    customer: Mapped[Customer] = relationship(back_populates="orders")
    lines: Mapped[list["Line"]] = relationship(back_populates="order", cascade="all, delete-orphan")


class Line(Base):
    """How many of one product, and at which price."""

    __tablename__ = "line"

    reference: Mapped[str] = mapped_column(ForeignKey("purchase.reference"), primary_key=True)
    sku: Mapped[str] = mapped_column(ForeignKey("product.sku"), primary_key=True, index=True)
    quantity: Mapped[int]
    price: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")
    product: Mapped[Product] = relationship()
