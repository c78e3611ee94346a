"""libSQL's protocol (Hrana 2 and 3) over HTTP, so that the clients that exist for SQLite servers connect.

``protobuf`` and ``structures`` turn bytes into what is asked and back (pure), ``session`` is one SQL stream,
``pipeline`` has the endpoints.
"""
