"""A node's configuration: read, checked, and its exposure to the network."""
