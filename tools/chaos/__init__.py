"""Chaos: real nodes under load while they are killed, stopped and cut off, judged by the checker afterwards."""
