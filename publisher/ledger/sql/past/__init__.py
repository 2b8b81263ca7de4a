"""What was delivered in the past: day by day, and of one job."""
