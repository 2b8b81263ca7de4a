"""What must not happen at a receiver: rows left behind, jobs under one key, databases that vanish."""
