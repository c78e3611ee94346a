"""The leader's part of a node: its own clients' transactions, from execution to the answer."""
