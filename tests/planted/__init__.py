"""Faults planted in the planner, the sums and the settling, one by one: tests have to find each."""
