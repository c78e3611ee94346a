"""Runs what others wrote against real nodes: see ``__main__``."""
