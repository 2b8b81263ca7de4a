"""What only SQLite knows: files, locks, schema."""
