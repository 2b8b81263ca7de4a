"""Fuzzing led by coverage, with atheris where it is installed: `python -m tests.guided_fuzz READER [-runs=N] [FOLDER...]`.

What hypothesis draws knows the shape of the input; atheris sees which branch each byte opened. Every reader of foreign bytes is
here alone: it may refuse with its own error, and nothing else. libFuzzer bounds its time (-timeout) and memory (-rss_limit_mb).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import atheris

with atheris.instrument_imports(include=["publisher"]):
    from publisher.arc_conf.reader import parse_arc_conf
    from publisher.charges.grammar import parse
    from publisher.charges.tokens import FormulaError
    from publisher.config.tree import Problems, parse_tree
    from publisher.delivery.answer import Answer
    from publisher.delivery.sgas_replies import said
    from publisher.delivery.verdicts import publish_verdict, token_of, token_verdict
    from publisher.errors import ConfigError
    from publisher.importers.gridengine_colon import read_colon
    from publisher.importers.gridengine_json import read_json
    from publisher.importers.gridengine_record import BadRecord, TimeUnit
    from publisher.importers.sonar_nodes import node_names
    from publisher.importers.sonar_times import BadTime, read_time
    from publisher.importers.sonar_tres import read_tres


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _line(content: bytes) -> str:
    """As files of accounting are read: Latin-1, a line."""
    return content.decode("latin-1").replace("\n", " ")


def _colon(content: bytes) -> None:
    with suppress(BadRecord):
        read_colon(_line(content), TimeUnit.AUTO)


def _json(content: bytes) -> None:
    with suppress(BadRecord):
        read_json(_line(content), TimeUnit.AUTO)


def _sonar(content: bytes) -> None:
    text = _text(content)
    node_names([text])
    read_tres(text)
    with suppress(BadTime):
        read_time(text)


def _formula(content: bytes) -> None:
    with suppress(FormulaError):
        parse(_text(content), {"RunTime", "NumCPUs"})


def _answer(content: bytes) -> None:
    answer = Answer(status=100 + content[0] if content else 200, headers={}, body=content[1:])
    token_verdict(answer)
    publish_verdict(1000, answer)
    token_of(answer)
    said(answer.body)


def _arc_conf(content: bytes) -> None:
    with suppress(ConfigError):
        parse_arc_conf(content, "arc.conf")


def _configuration(content: bytes) -> None:
    parse_tree(content, Problems("publisher.yaml"))


READERS: Final[dict[str, Callable[[bytes], None]]] = {
    "gridengine-colon": _colon,
    "gridengine-json": _json,
    "sonar-texts": _sonar,
    "formula": _formula,
    "answer": _answer,
    "arc-conf": _arc_conf,
    "configuration": _configuration,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in READERS:
        sys.exit(f"{__doc__}\n\nreaders: {', '.join(READERS)}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], READERS[sys.argv[1]])
    atheris.Fuzz()
