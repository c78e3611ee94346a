"""The facts that one node knows, each kind in a part of its own: clock, roster, timelines, votes, schema, outbox; and
the conflict tests."""
