"""The format of SQLite's sqllogictest, and a runner for it."""
