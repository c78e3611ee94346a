"""A node's repair of damaged tables: it finds them, decides whether others have the same, and fills its file again."""
