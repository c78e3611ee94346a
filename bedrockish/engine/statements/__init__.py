"""The work on a statement before it runs (it is classified, and refused or rewritten), and the functions and virtual
tables that a node adds to SQL.
"""
