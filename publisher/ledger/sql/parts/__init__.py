"""Each part of the ledger's contract as statements; `../ledger.py` puts them together."""
