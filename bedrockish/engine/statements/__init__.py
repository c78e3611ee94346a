"""The handling of a statement before it runs (classified, refused or rewritten), and the functions and tables
that SQL finds in a node.
"""
