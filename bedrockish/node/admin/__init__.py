"""An operator's orders to a node: status, troubles, anchors, retention."""
