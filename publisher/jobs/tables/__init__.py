"""What stands in the job store: its tables, the values of their columns, and what jobs share."""
