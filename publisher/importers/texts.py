"""Texts of other systems, which may hold anything."""

from __future__ import annotations

import re
from typing import Final

_UNWRITABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Without control characters and halves of surrogate pairs: neither SQLite nor XML takes them all."""
    return text if text.isprintable() else _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)
