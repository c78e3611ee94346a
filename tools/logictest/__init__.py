"""The format of SQLite's sqllogictest, a runner for it, and a generator of files in it."""
