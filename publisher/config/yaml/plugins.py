"""The plug-ins that a configuration may name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from publisher.config.yaml.schema import ReadContext, quoted
from publisher.config.yaml.tree import Text, YamlBlock, closest, nearest
from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS
from publisher.sources import IMPORTERS, SOURCES, importer_plugin, source_plugin
from publisher.transports import TRANSPORTS, transport_plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Names and, for all but formats, how to get the `Options` of one; nothing is loaded before it is named."""

    sources: Mapping[str, Callable[[], type]]
    transports: Mapping[str, Callable[[], type]]
    formats: Collection[str]
    importers: Mapping[str, Callable[[], type]] = field(default_factory=dict)


def _source_options(name: str) -> type:
    return source_plugin(name).Options


def _transport_options(name: str) -> type:
    return transport_plugin(name).Options


def _importer_options(name: str) -> type:
    return importer_plugin(name).Options


REGISTERED = Registered(
    sources={name: partial(_source_options, name) for name in SOURCES},
    transports={name: partial(_transport_options, name) for name in TRANSPORTS},
    # Sync counts are sent beside a format (`sync: true`), never as one.
    formats=(*JOB_FORMATS, *SUMMARY_FORMATS),
    importers={name: partial(_importer_options, name) for name in IMPORTERS},
)


def plugin_options(
    block: YamlBlock, known: Mapping[str, Callable[[], type]], reading: ReadContext
) -> tuple[str | None, type | None]:
    """The block's `type` and its `Options`.

    For a type that is not known the name is None, and the options are those of the nearest one, so that the other keys
    can be checked as well. A missing `type` is reported elsewhere.
    """
    node = block.keys.get("type")
    if not isinstance(node, Text) or node.null:
        return None, None
    name = node.text if node.text in known else None
    if name is None:
        reading.wrong(node.place, f"{quoted(node.text)} is not known; {nearest(node.text, tuple(known))}")
    probable = name or closest(node.text, known)
    try:
        return name, known[probable]() if probable else None
    except ImportError as error:
        reading.wrong(node.place, f"{probable} cannot be loaded here: {error}; install what is missing")
        return None, None
