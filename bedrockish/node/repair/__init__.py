"""What a node does about damaged tables: finding them, telling whether it is alone, and filling itself again."""
