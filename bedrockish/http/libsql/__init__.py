"""libSQL's protocol (Hrana 2 and 3) over HTTP, so that the clients that exist for SQLite servers connect.

``structures`` reads requests and writes results (pure), ``session`` is one SQL stream, ``pipeline`` has the endpoints.
"""
