"""What counts at receivers and this ledger did not send: sent by others, or before it was lost."""
