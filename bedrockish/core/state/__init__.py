"""What one node knows, each kind of fact in a part of its own: clock, roster, timelines, votes, schema, outbox; and
which transactions conflict."""
