"""What runs beside the event loop: background workers and their snapshots, the sync thread, the outbox, the clock."""
