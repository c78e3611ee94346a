"""SQL as text: its tokens, statements of transaction control, where a statement ends.

Pure; the one reader of SQL text.
"""
