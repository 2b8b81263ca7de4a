"""FQANs as the APEL server splits them (its table, measured on 2.5.0)."""

from __future__ import annotations

import pytest
from hypothesis import given

from publisher.model.published import parse_fqan
from tests.support.strategies import hostile_text
from tests.support.strict_apel import Refused, split_fqan

CASES = [
    ("/atlas/Role=production/Capability=NULL", ("atlas", "/atlas", "Role=production")),
    ("/atlas/Role=NULL/Capability=NULL", ("atlas", "/atlas", "Role=NULL")),
    ("/atlas", ("atlas", "/atlas", None)),
    ("/wlcg/pilots", ("wlcg", "/wlcg/pilots", None)),
    ("/atlas/Capability=NULL", ("atlas", "/atlas/Capability=NULL", None)),
    ("/atlas/sub/role=x", ("atlas", "/atlas/sub", "role=x")),
    ("/a/Role=x;/b", ("a", "/a", "Role=x")),
    ("/a/Role=x,/b:c", ("a", "/a", "Role=x,")),
    ("atlas", ("atlas", None, None)),
    ("urn:mace:x:group:y", ("urn:mace:x:group:y", None, None)),
    ('["/a"]', ('["/a"]', None, None)),
    ("group:/x", ("group:/x", None, None)),
    ("/Role=x", ("", None, "Role=x")),
    ("/", ("", "/", None)),
]


@pytest.mark.parametrize(("text", "parts"), CASES)
def test_parts(text: str, parts: tuple[str, str | None, str | None]) -> None:
    fqan = parse_fqan(text)
    assert (fqan.vo, fqan.group, fqan.role) == parts


@given(hostile_text)
def test_nothing_breaks_it_and_it_splits_as_the_server_does(text: str) -> None:
    text = text.strip()
    fqan = parse_fqan(f"/{text}")
    try:
        served = split_fqan(f"/{text}".split(";")[0].strip())
    except Refused:
        return
    assert (fqan.vo, fqan.group, fqan.role) == served
