"""Accounting publisher for a grid Computing Element or a batch head node.

A record's journey, room by room: a source (`sources/`) yields pages of job records; `judge.py` keeps those that a target
wants and the ledger does not know, and sets aside what cannot go; policy (`model/policy.py`) says what the site wants said
about them, quality rules (`model/quality*.py`) what a receiver would refuse; a format (`formats/`) renders them, one by one
(`batching.py`) or as monthly totals (`summing.py`); `dispatch.py` has the ledger (`ledger/`) write each message down, a
transport (`delivery/`) sign it and hand it over, and the ledger settle it by the receipt. `pipeline.py` is that sentence
and nothing else; `commands.py` starts it, `wiring.py` knows who is who.
"""

__version__ = "0.1.0"
