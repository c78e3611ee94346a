"""What is known of SQLite and of the user's tables: catalogue, key encoding, opcodes, limits, errors."""
