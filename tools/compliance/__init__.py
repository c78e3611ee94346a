"""Runs test suites of other projects against real nodes: see ``__main__``."""
