"""A node's file opened by programs of its machine: the page that the node publishes, reads and open transactions."""
