"""The database file: system tables, journal rows, applying rows, the WAL and its durability, schema versions."""
