"""Run the stand-in by hand: `python -m tests.fake_sgas --directory DIR`."""

import argparse
import signal
import sys
import threading
from pathlib import Path

from tests.fake_sgas.service import FakeSGAS
from tests.support.pki import PKI, Credential


def main() -> int:
    """Make a PKI, serve until ^C (or for `--seconds`), then say what arrived."""
    options = _parser().parse_args()
    pki = PKI.create(options.directory)
    host = pki.host(options.host_name)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with FakeSGAS(pki, port=options.port, generation=options.generation, twisted=options.twisted) as fake:
        fake.allow(host, *options.right)
        print(_settings(fake, host), flush=True)
        stop.wait(options.seconds)
        rows = fake.rows
    print(f"# {len(rows)} rows, {len(fake.requests)} requests")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_sgas", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the certificates go")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--generation", choices=("H", "R"), default="H", help="H: head of development, R: 3.8.1")
    parser.add_argument("--twisted", choices=("old", "new"), default="old", help="new: no tracebacks in answers")
    parser.add_argument("--right", action="append", default=[], help="such as jobinsert:all (default: jobinsert)")
    parser.add_argument("--host-name", default="ce.example.org", help="name in the host certificate")
    parser.add_argument("--seconds", type=float, default=None, help="stop by itself")
    return parser


def _settings(fake: FakeSGAS, host: Credential) -> str:
    """What a publisher needs, as YAML."""
    return f"""\
credentials:
  certificate: {host.certificate}
  key: {host.key}
  ca: {fake.pki.ca_directory}
targets:
  fake:
    type: sgas
    url: {fake.url}
    format: ogf-ur
# bundle: {fake.pki.bundle}
# ready"""


if __name__ == "__main__":
    sys.exit(main())
