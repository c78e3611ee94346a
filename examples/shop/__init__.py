"""A small shop written for SQLAlchemy: sign-up, orders, a report."""
