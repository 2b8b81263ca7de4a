"""The `metrics` block: where they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from publisher.config import values
from publisher.config.tree import Node
from publisher.config.values import Reading, Wrong

_LIBRARY: Final = "prometheus_client"
_LOOPBACK: Final = "127.0.0.1"
_PORTS: Final = range(1, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """An address of this host, IPv4 or IPv6, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _read_textfile(node: Node, reading: Reading) -> Path:
    path = values.path(node, reading)
    if path.suffix != ".prom":
        raise Wrong(f"{values.quoted(str(path))} does not end in .prom; the node exporter reads no other files")
    return path


def _read_listen(node: Node, _reading: Reading) -> Listen:
    text = values.scalar(node, "an address and a port, such as 127.0.0.1:9645")
    host, _colon, port = text.rpartition(":")
    host = {"": _LOOPBACK, "localhost": _LOOPBACK}.get(host, host.removeprefix("[").removesuffix("]"))
    try:
        ip_address(host)
    except ValueError:
        raise Wrong(f"{values.quoted(text)}: {values.quoted(host)} is no IP address; write 127.0.0.1:9645") from None
    if not port.isascii() or not port.isdigit() or int(port) not in _PORTS:
        raise Wrong(f"{values.quoted(text)}: {values.quoted(port)} is no port; write 127.0.0.1:9645")
    return Listen(host=host, port=int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """A text file for the node exporter, and where the daemon answers Prometheus itself."""

    textfile: Path | None = field(default=None, metadata={"read": _read_textfile})
    listen: Listen | None = field(default=None, metadata={"read": _read_listen})

    def __post_init__(self) -> None:
        if self.textfile is None and self.listen is None:
            raise ValueError("names neither textfile nor listen; take it out, or say where metrics are wanted")


def check_library(_: MetricsSettings) -> str | None:
    """What is missing here to make any."""
    if find_spec(_LIBRARY) is not None:
        return None
    return (
        f"the Python library {_LIBRARY} is not installed here; install it (python3-prometheus-client on Debian, "
        "python3-prometheus_client on EL, publisher[metrics] with pip), or take this block out"
    )
