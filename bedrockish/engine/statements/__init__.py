"""What a statement is before it runs: classified, refused or rewritten; and the functions and
tables that SQL finds in a node.
"""
