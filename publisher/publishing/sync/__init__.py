"""Job counts per host and month: sent, and compared."""
