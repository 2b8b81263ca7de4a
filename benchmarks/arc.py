"""ARC's own publishing code on one accounting database.

`python -m benchmarks.arc SRC DATABASE KIND CERT KEY`: SRC is a checkout of ARC, or a directory with
its package `arc`; KIND is urs, summaries-v04 or sgas. Records are made, signed and put into base64
as they are for the wire, and then dropped: no connection is made, which is to ARC's advantage.
Reads schema 1 only, as ARC 6 does. Prints the messages and their bytes.
"""

from __future__ import annotations

import base64
import importlib
import logging
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

KINDS: Final = {"car": "urs", "summaries": "summaries-v04", "ogf-ur": "sgas"}
_URL: Final = "https://localhost:8443/sgas/ur"


class Configuration:
    """An arc.conf with what a publisher asks for."""

    def __init__(self, control: Path, certificate: str, key: str) -> None:
        self._values = {
            "controldir": str(control),
            "x509_host_cert": certificate,
            "x509_host_key": key,
        }

    def get_value(self, name: str, _blocks: object = None, force_list: bool = False) -> Any:
        return self._values.get(name, [] if force_list else None)

    def get_subblocks(self, _name: str) -> list[str]:
        return []


def package_of(source: Path) -> Path:
    """Where `import arc` finds it. Raises: FileNotFoundError."""
    for below in (source / "src" / "utils" / "python", source):
        if (below / "arc" / "control" / "AccountingPublishing.py").exists():
            return below
    what = "holds no arc/control/AccountingPublishing.py; ARC_SRC names a checkout of ARC"
    raise FileNotFoundError(f"{source}: {what}")


def main(source: str, database: str, kind: str, certificate: str, key: str) -> None:
    sys.path.insert(0, str(package_of(Path(source))))
    publishing: Any = importlib.import_module("arc.control.AccountingPublishing")
    logging.disable(logging.CRITICAL)
    sent: list[int] = []

    def signed(sender: Any, data: str) -> bool:
        message = sender._msg_sign(data).encode()
        sent.append(len(base64.b64encode(message)))  # what it does before it connects
        return True

    def posted(_sender: Any, data: str) -> bool:
        sent.append(len(data.encode()))
        return True

    publishing.APELAMSDirectSender._msg_send = signed
    publishing.SGASSender._SGASSender__post_xml = posted
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder)
        (control / "accounting").mkdir()
        (control / "accounting" / "accounting.db").symlink_to(Path(database).resolve())
        publisher = publishing.RecordsPublisher(Configuration(control, certificate, key))
        target = {
            "targeturl": _URL,
            "gocdb_name": "EXAMPLE-SITE",
            "topic": "bench",
            "apel_messages": kind,
        }
        service = "sgas" if kind == "sgas" else "apel"
        if not publisher.republish(service, target, datetime(2000, 1, 1, tzinfo=UTC)):
            raise SystemExit("ARC's publisher failed")
    print(len(sent), sum(sent))


if __name__ == "__main__":
    main(*sys.argv[1:])
