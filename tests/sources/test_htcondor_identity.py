"""Who a job of HTCondor belongs to, by the attributes of its ad."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.sources.htcondor.classads import read_ad
from publisher.sources.htcondor.identity import JobOwner, identity_of
from tests.support.condor_history import text

DN = "/DC=org/CN=Ada, A."
PRODUCTION, MEMBER = "/atlas/Role=production/Capability=NULL", "/atlas"


def identity(**attributes: object) -> JobOwner:
    return identity_of(read_ad(text(attributes).decode()))


def token(prefix: str, subject: str = "1f2e", groups: str = "/cms,/cms/pilot") -> Mapping[str, str]:
    found = {"Subject": subject, "Issuer": "https://cms-auth.example.org/", "Groups": groups}
    return {f"{prefix}AuthToken{name}": value for name, value in found.items()}


@pytest.mark.parametrize("prefix", ["", "orig_"])
def test_a_token_is_the_jobs_own_or_that_of_the_job_it_was_routed_from(prefix: str) -> None:
    expected = JobOwner("https://cms-auth.example.org/1f2e", "cms", ("/cms", "/cms/pilot"))
    assert identity(**token(prefix)) == expected


def test_parts_of_two_tokens_are_never_joined() -> None:
    both = {**token("", "router", "/ops"), "orig_AuthTokenSubject": "1f2e"}
    assert identity(**both) == JobOwner("1f2e", "", ())
    both = {**token(""), **token("orig_", "9a9a", "/atlas")}
    assert identity(**both) == JobOwner("https://cms-auth.example.org/9a9a", "atlas", ("/atlas",))


@pytest.mark.parametrize(
    ("listed", "subject", "fqans"),
    [
        (f"/DC=org/CN=Ada,{PRODUCTION},{MEMBER}", "/DC=org/CN=Ada", (PRODUCTION, MEMBER)),
        # A comma and an ampersand as HTCondor writes them, and a comma as others do.
        (f"/CN=Ada&comma; A. &amp; B.,{MEMBER}", "/CN=Ada, A. & B.", (MEMBER,)),
        (f"/CN=&amp;comma;,{MEMBER}", "/CN=&comma;", (MEMBER,)),
        (f"{DN},{PRODUCTION}", DN, (PRODUCTION,)),
        (f"/CN=Ada,/OU=x,y,{PRODUCTION}", "/CN=Ada,/OU=x,y", (PRODUCTION,)),
        (f"CN=Ada,O=Example,C=org,{PRODUCTION}", "CN=Ada,O=Example,C=org", (PRODUCTION,)),
        ("/CN=Ada,/atlas/Role=a&comma;b,/atlas", "/CN=Ada", ("/atlas/Role=a,b", MEMBER)),
        ("/CN=Ada,/atlas/Role=a,b,/atlas", "/CN=Ada", ("/atlas/Role=a,b", MEMBER)),
        (f"/CN=Ada,{MEMBER},{MEMBER}", "/CN=Ada", (MEMBER,)),
        (DN, DN, ()),
        (PRODUCTION, "", (PRODUCTION,)),
        ("", "", ()),
    ],
)
def test_the_list_of_a_proxys_fqans(listed: str, subject: str, fqans: tuple[str, ...]) -> None:
    vo = "atlas" if fqans else ""
    assert identity(x509UserProxyFQAN=listed) == JobOwner(subject, vo, fqans)


def test_a_list_of_very_many_fqans_is_cut() -> None:
    listed = ",".join(f"/atlas/g{number}" for number in range(1000))
    assert len(identity(x509UserProxyFQAN=f"/CN=Ada,{listed}").fqans) == 100


def test_what_the_ad_says_of_a_proxy_by_itself_comes_first() -> None:
    listed = {"x509UserProxyFQAN": f"/CN=Ada/CN=proxy,{MEMBER}", "x509userproxysubject": "/CN=Ada"}
    assert identity(**listed) == JobOwner("/CN=Ada", "atlas", (MEMBER,))
    assert identity(**listed, x509UserProxyFirstFQAN=PRODUCTION).fqans == (PRODUCTION,)
    assert identity(**listed, x509UserProxyVOName="atlas.example.org").vo == "atlas.example.org"
    assert identity(**listed, **token("")) == JobOwner("/CN=Ada", "atlas", (MEMBER,))


def test_a_proxy_without_fqans_leaves_the_groups_to_the_token() -> None:
    assert identity(x509userproxysubject="/CN=Ada", **token("")) == JobOwner("/CN=Ada", "cms", ("/cms", "/cms/pilot"))


NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters=" ,&;."), min_size=1)


@given(NAMES.map(str.strip).filter(bool), st.lists(NAMES, min_size=1, max_size=5))
def test_any_list_as_htcondor_writes_it(name: str, roles: list[str]) -> None:
    fqans = [f"/atlas/Role={role}/Capability=NULL" for role in roles]
    parts = [part.replace("&", "&amp;").replace(",", "&comma;") for part in (f"/DC=org/CN={name}", *fqans)]
    found = identity(x509UserProxyFQAN=",".join(parts))
    assert found == JobOwner(f"/DC=org/CN={name}", "atlas", tuple(dict.fromkeys(fqans)))
