"""Nonsense and malice at every door of real nodes; ``python -m tools.fuzz --seconds 60``."""
