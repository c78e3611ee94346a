"""libSQL's protocol (Hrana 1 to 3) over HTTP, for the existing clients of SQLite servers.

``structures`` reads requests and writes results (pure), ``session`` is one SQL stream, ``pipeline`` has the endpoints.
"""
