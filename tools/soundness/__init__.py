"""The search for changes that an analysis of statements wrongly declares irrelevant: ``python -m tools.soundness``."""
