"""Accounting publisher for a grid Computing Element or a batch head node.

A source (`sources/`) yields pages of job records; a round (`publishing/round/`) keeps those that a
target wants and whose entry the ledger lacks; policy (`policy/records.py`) says what the site wants
published about them; a format (`formats/`) renders them, one by one or as monthly totals; the
ledger (`ledger/`) writes each message down, a transport (`transports/`) hands it over, and the
ledger settles it by the receipt. `docs/architecture.md` draws the rest.
"""

__version__ = "0.1.0"
