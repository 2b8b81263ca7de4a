"""A stand-in for SGAS behind nginx: real mutual TLS, the habits of two generations, scripted faults."""

from tests.fake_sgas.faults import CONNECT, Act, Fault, bad_gateway, gateway_timeout, unavailable
from tests.fake_sgas.recorder import Request
from tests.fake_sgas.rows import Row, TransferRow
from tests.fake_sgas.service import FakeSGAS

__all__ = [
    "CONNECT",
    "Act",
    "FakeSGAS",
    "Fault",
    "Request",
    "Row",
    "TransferRow",
    "bad_gateway",
    "gateway_timeout",
    "unavailable",
]
