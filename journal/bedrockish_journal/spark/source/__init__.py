"""The Spark data source: tables and streams over journals and running nodes."""
