"""The work on a statement before it runs, and the functions and virtual tables that a node adds to SQL."""
