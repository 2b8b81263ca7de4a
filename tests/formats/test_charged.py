"""Charges and GPUs in the two formats that have a place for them, and nowhere else."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from publisher.formats import JOB_FORMATS, job_format, receiver_of
from publisher.formats.base import JobFormat
from publisher.formats.sgas.rules import sgas_omissions
from publisher.model.errors import Unfit
from publisher.model.published import PublishedJob
from publisher.model.rates import Charge, Tariff
from tests.support.jobs import ENDED, make_charging, make_job, make_policy
from tests.support.strategies import examples
from tests.support.strict_apel import read_car
from tests.support.strict_sgas import read_ur

NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)
CAR = "{http://eu-emi.eu/namespaces/2012/11/computerecord}"
UR = "{http://schema.ogf.org/urf/2003/09/urf}"
SGAS = "{http://www.sgas.se/namespaces/2009/07/ur}"
SPACES = {"car": CAR, "ogf-ur": UR}


def made(form: JobFormat, published: PublishedJob) -> bytes:
    payload = form.frame.join([form.render(published, NOW)])
    form.check(payload)
    return payload


def attributes(element: etree._Element) -> dict[str, str]:
    return {str(name): str(value) for name, value in element.attrib.items()}


def described(formula: str = "cpu * RunTime", **overrides: Any) -> PublishedJob:
    job = make_job(**{key: overrides.pop(key) for key in ("gpu_count", "cpu_count", "wall_s") if key in overrides})
    return make_policy(charging=make_charging(formula, **overrides)).describe(job)


CHARGED_FORMATS = {name for name in JOB_FORMATS if receiver_of(name).takes_charges}


@pytest.mark.parametrize("name", sorted(CHARGED_FORMATS))
def test_a_charge_stands_between_name_and_status_with_its_unit_and_formula(name: str) -> None:
    space = SPACES[name]
    payload = made(job_format(name), described("cpu * RunTime", wall_s=5400, unit="CPUh", description="A & B"))
    charge = etree.fromstring(payload).find(f".//{space}Charge")
    assert charge is not None
    assert charge.text == "6"
    assert attributes(charge) == {
        f"{space}unit": "CPUh", f"{space}formula": "cpu * RunTime", f"{space}description": "A & B"
    }  # fmt: skip
    before, after = charge.getprevious(), charge.getnext()
    assert before is not None
    assert after is not None
    assert (before.tag, after.tag) == (f"{space}JobName", f"{space}Status")


@pytest.mark.parametrize("name", sorted(CHARGED_FORMATS))
def test_a_job_without_charge_and_gpus_says_nothing_of_them(name: str) -> None:
    form = job_format(name)
    plain = made(form, make_policy().describe(make_job()))
    assert made(form, described("gres_gpu * RunTime")) == plain
    assert made(form, make_policy().describe(make_job(gpu_count=0))) == plain
    for word in (b"Charge", b"gpu", b"GPU", b"AllocResource", b"ConsumableResource"):
        assert word not in plain


def test_gpus_in_car_are_a_consumable_resource_at_the_end() -> None:
    payload = made(job_format("car"), make_policy().describe(make_job(gpu_count=3)))
    (found,) = etree.fromstring(payload).iter(f"{CAR}ConsumableResource")
    assert found.text == "3"
    assert attributes(found) == {f"{CAR}units": "GPU", f"{CAR}description": "gres/gpu"}
    assert found.getnext() is None
    read_car(payload, NOW)


def test_gpus_in_usage_records_are_an_allocated_resource() -> None:
    payload = made(job_format("ogf-ur"), make_policy().describe(make_job(gpu_count=3)))
    (found,) = etree.fromstring(payload).iter(f"{SGAS}AllocResource")
    assert found.text is None
    assert attributes(found) == {f"{SGAS}resourceType": "gres/gpu", f"{SGAS}resourceAmount": "3"}
    (row,) = read_ur(payload)
    assert row["allocated"] == [("gres/gpu", "3")]


@pytest.mark.parametrize("name", [name for name in JOB_FORMATS if name.startswith("apel-job")])
def test_text_for_apel_has_neither(name: str) -> None:
    """A key that APEL does not know makes it reject the record."""
    form = job_format(name)
    plain = form.render(make_policy().describe(make_job(gpu_count=None)), NOW)
    assert form.render(described(gpu_count=2), NOW) == plain


amounts = st.decimals(min_value=-(10**15), max_value=10**15, places=6) | st.decimals(
    min_value=-3_000_000_000, max_value=3_000_000_000, places=2
)
tariffs = st.builds(
    Tariff,
    unit=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20),
    formula=st.text("abz_09+-*/%(). ", min_size=1, max_size=200).filter(str.strip),
    description=st.text(max_size=50),
)


@given(
    st.builds(Charge, amount=amounts, tariff=tariffs), st.none() | st.integers(0, 10**9), st.sampled_from(list(SPACES))
)
@settings(max_examples=examples(200))
def test_any_charge_and_any_number_of_gpus_arrive(charge: Charge, gpus: int | None, name: str) -> None:
    published = make_policy(charging=_Fixed(charge)).describe(
        make_job(gpu_count=gpus, client_host="ui.example.org:51022")  # the official schema knows no addresses
    )
    payload = made(job_format(name), published)
    _check_official(name, payload)
    found = etree.fromstring(payload).find(f".//{SPACES[name]}Charge")
    if name == "car":
        read_car(payload, NOW)
    else:
        (row,) = read_ur(payload)
        assert row["allocated"] == ([("gres/gpu", str(gpus))] if gpus else [])
        fits = abs(charge.amount) <= 2**31 - 1
        assert row["charge"] == (int(charge.amount) if fits else None)
        assert ("charge-left-out" in dict(sgas_omissions(published))) is not fits
        if not fits:
            return
    assert found is not None
    assert Decimal(found.text or "") == charge.amount
    assert found.get(f"{SPACES[name]}unit") == charge.tariff.unit
    assert found.get(f"{SPACES[name]}formula") == charge.tariff.formula.strip()


class _Fixed:
    """The same charge for every job."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge

    def of(self, job: object) -> Charge:
        return self._charge


def test_sgas_is_told_what_it_will_keep() -> None:
    published = described("10.0 / 4")
    assert dict(sgas_omissions(published))["charge-fraction"] == "2.5 becomes 2"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("car", b'urf:unit="credits"', b'unit="credits"'),
        ("car", b">6</Charge>", b">six</Charge>"),
        ("car", b">2</ConsumableResource>", b">two</ConsumableResource>"),
        ("ogf-ur", b'urf:formula="', b'formula="'),
        ("ogf-ur", b">6</Charge>", b"></Charge>"),
        ("ogf-ur", b">6</Charge>", b">NaN</Charge>"),
        ("ogf-ur", b">6</Charge>", b">2147483648</Charge>"),
        ("ogf-ur", b"sgas:resourceAmount", b"resourceAmount"),
        ("ogf-ur", b'resourceAmount="2"', b'resourceAmount="0"'),
    ],
)
def test_the_check_finds_spoilt_charges_and_resources(name: str, old: bytes, new: bytes) -> None:
    form = job_format(name)
    payload = made(form, described(gpu_count=2, wall_s=5400))
    assert old in payload
    with pytest.raises(Unfit):
        form.check(payload.replace(old, new))


_OFFICIAL: dict[str, etree.XMLSchema] = {}
_FILES = {"car": "car-1.2/car_v1.2.xsd", "ogf-ur": "ur-1.0/offline-driver.xsd"}


def _check_official(name: str, payload: bytes) -> None:
    """By the official schemas, where they are; of a usage record without its extensions."""
    schemas = os.environ.get("PUBLISHER_SCHEMAS")
    if not schemas:
        return
    if name not in _OFFICIAL:
        _OFFICIAL[name] = etree.XMLSchema(etree.parse(str(Path(schemas) / _FILES[name])))
    root = etree.fromstring(payload)
    for foreign in [one for one in root.iter("*") if f"{{{etree.QName(one).namespace}}}" != SPACES[name]]:
        parent = foreign.getparent()
        if parent is not None:
            parent.remove(foreign)
    _OFFICIAL[name].assertValid(root)
