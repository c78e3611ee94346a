"""The facts that one node knows, each kind in its own class (clock, roster, timelines, votes, schema, outbox); and the
conflict tests."""
