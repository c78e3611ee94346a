"""Work outside the event loop: background workers and their snapshots, durability and its waiters, clocks."""
