"""What every import of another accounting shares: its local database, log files, mapping."""
