"""Jobs of ARC CEs beside those of the batch system behind them: each run counts once."""
