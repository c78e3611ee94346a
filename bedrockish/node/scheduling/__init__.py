"""What runs beside the event loop: background workers and their snapshots, durability and who waits for it, clocks."""
