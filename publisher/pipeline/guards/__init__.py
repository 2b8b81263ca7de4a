"""What must not happen: rows left behind, jobs under one key, databases that vanish."""
