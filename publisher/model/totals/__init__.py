"""What is counted of many jobs: summaries of a month, what a receiver has of it, and job counts."""
