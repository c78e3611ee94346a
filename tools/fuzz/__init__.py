"""Malformed and hostile input at every interface of real nodes; ``python -m tools.fuzz --seconds 60``."""
