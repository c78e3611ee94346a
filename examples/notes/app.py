"""Notes: a small web application with Flask. See docs/web.md.

BEDROCKISH_URL=bedrockish://127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 flask --app examples.notes.app run
"""

import uuid
from typing import Any

import flask

import bedrockish

SCHEMA = "CREATE TABLE IF NOT EXISTS note(id TEXT PRIMARY KEY, author TEXT NOT NULL, body TEXT NOT NULL)"


def create_app(url: str | None = None) -> flask.Flask:
    """Return the application; without a URL, BEDROCKISH_URL says where the cluster is."""
    app = flask.Flask(__name__)
    pool = bedrockish.connect_pool(url, size=8)
    app.extensions["pool"] = pool
    with pool.connection() as db:
        db.execute(SCHEMA)

    @app.post("/notes")
    def write() -> tuple[dict[str, Any], int]:
        """Keep a note. Sent again with the same Idempotency-Key, it is kept once."""
        note = flask.request.get_json()
        # A browser that lost the answer sends the same key again, so the command has the same id and happens once.
        key = flask.request.headers.get("Idempotency-Key")
        command = key or uuid.uuid4().hex
        with pool.connection(timeout=2) as db:
            rows = db.execute(
                "INSERT INTO note VALUES (?, ?, ?) RETURNING id",
                (uuid.uuid5(uuid.NAMESPACE_OID, command).hex, note["author"], note["body"]),
                command=f"note-{command}",
                resend=key is not None,
                timeout=5,
            )
        return {"id": rows.value()}, 201

    @app.get("/notes")
    def read() -> dict[str, Any]:
        """Return all notes of an author."""
        author = flask.request.args["author"]
        with pool.connection(timeout=2) as db:
            rows = db.execute("SELECT id, body FROM note WHERE author = ? ORDER BY id", (author,), timeout=5)
        return {"notes": [{"id": number, "body": body} for number, body in rows]}

    @app.errorhandler(bedrockish.BedrockishError)
    def failed(error: bedrockish.BedrockishError) -> tuple[dict[str, Any], int, dict[str, str]]:
        """Keep the three answers apart: it did not happen, it may later, and it cannot be told."""
        body = {"error": error.message}
        if isinstance(error, bedrockish.OutcomeUnknownError):
            return body, 504, {"Retry-After": "1"}  # send it again under the same Idempotency-Key
        if error.retry:
            return body, 503, {"Retry-After": "1"}  # it did not happen; it can be sent again
        if isinstance(error, bedrockish.ConstraintError):
            return body, 409, {}
        return body, 400 if isinstance(error, bedrockish.UsageError) else 500, {}

    return app
