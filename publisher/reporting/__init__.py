"""What people look at afterwards: explain, statistics, usage, charges, the report, metrics."""
