"""A node's HTTP: SQL as JSON, probes, metrics and the dashboard. Imported only when the configuration asks for it."""
