"""The accounting databases that a site reads: filled from batch systems, looked for, pruned."""
