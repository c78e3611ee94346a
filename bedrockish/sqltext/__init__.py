"""SQL as text: its tokens, the ends of its statements, and statements of transaction control.

Pure; all other packages read SQL text with these functions.
"""
