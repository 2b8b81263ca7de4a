"""Metrics for Prometheus: what each target's last round left, as a text file for the node exporter and over HTTP.

After each round its target is measured, and the values are kept in the publishing database (`ledger/books.py`): a
process that runs one round and ends goes on with the counters of those before it, and each target shows as it was after its
own last round. File and endpoint tell what is kept there, `definitions.py` says what each name means.
"""

from publisher.reporting.metrics.collector import after_round

__all__ = ["after_round"]
