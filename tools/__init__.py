"""The project's own programs: tests, demo, benchmark, generated documentation."""
