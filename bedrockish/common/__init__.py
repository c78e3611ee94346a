"""What needs nothing else of the project: the hybrid logical clock, histograms, log lines, password hashes."""
