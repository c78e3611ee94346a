"""A node's handling of damaged tables: it finds them, tells whether it is alone with them, and fills itself again."""
