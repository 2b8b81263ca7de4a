"""What SGAS reads: OGF usage records, and what SGAS makes of their values."""
