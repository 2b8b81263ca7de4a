"""Fuzzing led by coverage, with atheris where it is installed: `python -m tests.fuzz.guided_fuzz READER [-runs=N] [FOLDER...]`.

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
    from publisher.config.from_arc.reader import parse_arc_conf
    from publisher.config.schema import Problems
    from publisher.config.yaml_file import parse_tree
    from publisher.model.errors import ConfigError
    from publisher.reporting.charges.formula import FormulaError, parse
    from publisher.sources.files.slurm_jobs import node_names, read_tres
    from publisher.sources.gridengine.records import BadGridEngineRecord, StampUnit, read_colon, read_json
    from publisher.sources.htcondor.classads import BadAd, read_ad, read_record, read_value
    from publisher.sources.sonar.records import BadTime, read_time
    from publisher.transports.ams.responses import publish_verdict, token_of, token_verdict
    from publisher.transports.http.exchange import Answer
    from publisher.transports.sgas.responses import parse_error_page


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _line(content: bytes) -> str:
    """As files of accounting are read: Latin-1, a line."""
    return content.decode("latin-1").replace("\n", " ")


def _colon(content: bytes) -> None:
    with suppress(BadGridEngineRecord):
        read_colon(_line(content), StampUnit.AUTO)


def _json(content: bytes) -> None:
    with suppress(BadGridEngineRecord):
        read_json(_line(content), StampUnit.AUTO)


def _sonar(content: bytes) -> None:
    text = _text(content)
    node_names([text])
    read_tres(text)
    with suppress(BadTime):
        read_time(text)


def _classad(content: bytes) -> None:
    with suppress(BadAd):
        for expression in read_ad(_text(content)).values():
            read_value(expression)
            read_record(expression)


def _formula(content: bytes) -> None:
    with suppress(FormulaError):
        parse(_text(content), {"RunTime", "NumCPUs"})


def _answer(content: bytes) -> None:
    answer = Answer(status=100 + content[0] if content else 200, headers={}, body=content[1:])
    token_verdict(answer)
    publish_verdict(1000, answer)
    token_of(answer)
    parse_error_page(answer.body)


def _arc_conf(content: bytes) -> None:
    with suppress(ConfigError):
        parse_arc_conf(content, "arc.conf")


def _configuration(content: bytes) -> None:
    parse_tree(content, Problems("publisher.yaml"))


READERS: Final[dict[str, Callable[[bytes], None]]] = {
    "gridengine-colon": _colon,
    "gridengine-json": _json,
    "sonar-texts": _sonar,
    "classad": _classad,
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
