"""The cluster of ``tools/demo``: three nodes under load, a kill, and the checks afterwards."""
