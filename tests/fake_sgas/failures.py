"""How SGAS says that a batch is lost, and the pages that nginx puts in its place.

Measured on luts3-service behind nginx 1.22.1. Where only the kind of an answer was
measured, the wording here is ours: a client must not lean on more than that kind.
"""

from dataclasses import dataclass
from html import escape
from typing import Literal

from tests.fake_ams import wire

Generation = Literal["H", "R"]
"""H: the head of development on Python 3.8; R: release 3.8.1 on Python 2.7."""
Twisted = Literal["old", "new"]
"""old: up to 19.2, tracebacks in the answer; new: from 19.7, 'Processing Failed' and no more."""

PROCESSING_FAILED = b"<html><head><title>Processing Failed</title></head><body><b>Processing Failed</b></body></html>"


class Failure(Exception):
    """A batch is lost, all of it."""


class Crash(Failure):
    """An exception in the request's own call stack, which Twisted turns into a page."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        self.message = message
        super().__init__(f"{kind}: {message}")


class Refusal(Failure):
    """An exception in the database's thread, whose bare text is the answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer of SGAS or nginx; everything is labelled `text/html`."""

    status: int
    body: bytes = b""
    chunked: bool = False
    close: bool = False


def plain(status: int, text: str) -> Reply:
    """A line of text, framed in chunks as all answers from the database's thread are."""
    return Reply(status=status, body=text.encode(), chunked=True)


def page(crash: Crash, generation: Generation, twisted: Twisted) -> Reply:
    """The answer to an exception: a traceback, or next to nothing."""
    if twisted == "new":
        return Reply(status=500, body=PROCESSING_FAILED)
    builtin = crash.kind.endswith(("Error", "Exception")) and "." not in crash.kind
    module = {"H": "builtins.", "R": "exceptions."}[generation] if builtin else ""
    error = f'<div class="error">\n<span>{module}{escape(crash.kind)}</span>: <span>{escape(crash.message)}</span>\n</div>\n'
    frames = "".join(_frame(number) for number in range(14))
    title = "web.Server Traceback (most recent call last)"
    html = (
        f"<html><head><title>{title}</title></head><body><b>{title}:</b>\n\n<div>\n"
        f'<style type="text/css">\n div.error {{ color: red; font-family: Verdana, Arial, sans-serif; }}\n</style>\n'
        f'{error}<div class="stackTrace">{frames}</div>\n{error}</div>\n\n</body></html>\n'
    )
    return Reply(status=500, body=html.encode())


def _frame(number: int) -> str:
    lines = "".join(
        f'<div class="snippet{mark}Line"><span class="lineno">{number * 20 + line}</span><code class="code">'
        f"{'&nbsp;' * 8}result = step_{number}(value, another, &#39;text&#39;)</code></div>\n"
        for line, mark in enumerate(("", "Highlight", ""))
    )
    return (
        f'<div class="frame{"Firs" if number == 0 else ""}">\n<div class="location"><span>/srv/sgas/part_{number}.py</span>:'
        f"<span>{number * 20 + 1}</span> in <span>step_{number}</span></div>\n{lines}</div>\n"
    )


def nginx_page(status: int, title: str = "") -> bytes:
    """An error page of nginx; `title` where it says more than the status does."""
    phrase = wire.phrase(status)
    center = f"<center>{title}</center>\r\n" if title else ""
    return (
        f"<html>\r\n<head><title>{status} {title or phrase}</title></head>\r\n<body>\r\n"
        f"<center><h1>{status} {phrase}</h1></center>\r\n{center}"
        "<hr><center>nginx/1.22.1</center>\r\n</body>\r\n</html>\r\n"
    ).encode()


def from_nginx(status: int, title: str = "", *, close: bool = False) -> Reply:
    return Reply(status=status, body=nginx_page(status, title), close=close)
