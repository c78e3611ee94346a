"""The search for approved transactions that a node cannot apply: ``python -m tools.applicable``."""
