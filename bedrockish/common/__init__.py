"""What needs nothing else of the project: histograms, timers, log lines, password hashes."""
