"""A stand-in for the ARGO authentication and messaging services: real TLS, the services' habits, scripted faults."""

from tests.fake_ams.faults import CONNECT, HTML_502, Act, Fault
from tests.fake_ams.receiver import Receiver, Refused, Verdict
from tests.fake_ams.recorder import Request
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.fake_ams.storage import Message
from tests.fake_ams.tables import Tables

__all__ = [
    "CONNECT",
    "HTML_502",
    "PROJECT",
    "TOPIC",
    "Act",
    "FakeAMS",
    "Fault",
    "Message",
    "Receiver",
    "Refused",
    "Request",
    "Tables",
    "Verdict",
]
