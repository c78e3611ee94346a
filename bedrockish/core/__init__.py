"""The protocol of one node, pure: it takes events and returns effects."""
