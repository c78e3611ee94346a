"""A node's HTTP: SQL as JSON, probes and metrics. Imported only when the configuration asks for it."""
