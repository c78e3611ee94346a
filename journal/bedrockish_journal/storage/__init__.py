"""The journal inside a SQLite file: its tables, rows, schema history and pruning."""
