"""Helpers around SQLite: parameters, deferred foreign keys, limits, the watchdog, errors."""
