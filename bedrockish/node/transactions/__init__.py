"""Open transactions of clients, their statements and cursors, from begin to the last answer."""
