"""A running node: the event loop that feeds the core and performs its effects, client sessions, plugins."""
