"""A node's repair of damaged tables: detection, comparison with other nodes, and the refill of the file."""
