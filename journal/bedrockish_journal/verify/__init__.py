"""Checks of journals against their laws, against each other and, by a replay, against tables."""
