"""Explores all possible states of a small cluster of real cores: see ``docs/model-check.md``."""
