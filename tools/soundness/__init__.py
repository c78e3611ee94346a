"""Searches for faults of the analysis of statements, with random schemas: ``python -m tools.soundness``."""
