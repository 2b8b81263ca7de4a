"""What other publishers and lost ledgers had is taken over, and what is old is closed."""
