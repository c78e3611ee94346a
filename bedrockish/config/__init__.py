"""A node's configuration: read, checked, and what it exposes to the network."""
