"""Run the stand-in by hand: `python -m tests.fake_ams --directory DIR`."""

import argparse
import signal
import sys
import threading
from pathlib import Path

from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.pki import PKI, Credential


def main() -> int:
    """Make a PKI, serve until ^C (or for `--seconds`), then say what arrived."""
    options = _parser().parse_args()
    pki = PKI.create(options.directory)
    host = pki.host(options.host_name)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with FakeAMS(
        pki,
        port=options.port,
        auth_port=options.auth_port,
        profile=options.profile,
        auth_option=options.auth_option,
        keep_data=not options.counts_only,
    ) as fake:
        fake.bind(host, topics=[options.topic])
        print(_settings(fake, host, options.topic), flush=True)
        stop.wait(options.seconds)
        messages = fake.messages(PROJECT, options.topic)
    size = sum(message.size for message in messages)
    print(f"# {len(messages)} messages, {size} bytes of base64, {len(fake.requests)} requests")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_ams", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the certificates go")
    parser.add_argument("--port", type=int, default=0, help="port of AMS (default: a free one)")
    parser.add_argument("--auth-port", type=int, default=0, help="port of authn (default: a free one)")
    parser.add_argument("--profile", choices=("old", "new"), default="new", help="old: 413, new: 500 when too large")
    parser.add_argument("--auth-option", choices=("header", "key", "both"), default="header")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--host-name", default="ce.example.org", help="name in the host certificate")
    parser.add_argument("--counts-only", action="store_true", help="keep digests, not messages")
    parser.add_argument("--seconds", type=float, default=None, help="stop by itself")
    return parser


def _settings(fake: FakeAMS, host: Credential, topic: str) -> str:
    """What a publisher and a consumer need, as YAML."""
    return f"""\
credentials:
  certificate: {host.certificate}
  key: {host.key}
  ca: {fake.pki.ca_directory}
targets:
  fake:
    type: ams
    url: {fake.url}
    auth_url: {fake.auth_url}
    service_host: {fake.service_host}
    project: {PROJECT}
    topic: {topic}
# bundle: {fake.pki.bundle}
# consumer token: {fake.consumer_token}
# admin token: {fake.admin_token}
# ready"""


if __name__ == "__main__":
    sys.exit(main())
