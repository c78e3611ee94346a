"""Modules without dependencies on the rest of the project: histograms, timers, log lines, password hashes."""
