"""The messages between nodes, the events at a node, the effects that it causes, and the records that it keeps."""
