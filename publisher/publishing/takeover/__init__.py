"""Start where another publisher stopped: adopt ARC's state, find what it lost, compare."""
