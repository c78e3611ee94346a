"""libSQL's protocol (Hrana 2 and 3) over HTTP, for the existing clients of SQLite servers.

``structures`` reads requests and writes results (pure), ``session`` is one SQL stream, ``pipeline`` has the endpoints.
"""
