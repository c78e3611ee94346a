"""A node's configuration: reads and checks it, and refuses a node that is open to the network without protection."""
