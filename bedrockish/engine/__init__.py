"""Transactions on stock SQLite: execute, capture, apply, make durable."""
