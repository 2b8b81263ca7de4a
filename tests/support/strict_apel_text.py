"""Reads text messages as the APEL server does, and refuses what it refuses: rows of its tables, or `Refused`.

Written from measurements of SSM 4.0.0 and APEL 2.5.0, independent of the product: nothing of it is imported here. What
the server takes but would regret (a negative benchmark, a second ServiceLevelType) is refused too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final

from tests.support.strict_apel import Refused, Row, split_fqan

__all__ = ["COMMON_KEY", "KEYS", "Refused", "fold", "read_text", "replaced", "summarised"]

_NOT_GIVEN: Final = ("", "none", "null")
_INT_MAX: Final = 2**31 - 1
_BIGINT_MAX: Final = 2**63 - 1
_PREFERENCE: Final = ("hepscore23", "hepspec", "si2k")
_LARGEST_LEVEL: Final = Decimal("9999999.999")

_WHO: Final = {"GlobalUserName": 255, "VO": 255, "VOGroup": 255, "VORole": 255}
_JOB_TEXTS: Final = _WHO | {
    "Site": 255, "SubmitHost": 255, "MachineName": 255, "Queue": 100, "LocalJobId": 255, "LocalUserId": 255, "FQAN": 255,
    "InfrastructureDescription": 100, "InfrastructureType": 20,
}  # fmt: skip
_JOB_COUNTS: Final = ("WallDuration", "CpuDuration", "Processors", "NodeCount", "MemoryReal", "MemoryVirtual")
_SUMMARY_TEXTS: Final = _WHO | {"Site": 255, "SubmitHost": 255, "InfrastructureType": 20}
_NORMALISED_TEXTS: Final = _WHO | {"Site": 255, "SubmitHost": 255, "Infrastructure": 20}
_MONTHLY: Final = (
    "Month", "Year", "NodeCount", "Processors", "EarliestEndTime", "LatestEndTime", "WallDuration", "CpuDuration",
    "NumberOfJobs",
)  # fmt: skip

# Section 5. The tables replace rows whose key is equal.
COMMON_KEY: Final = (
    "Site", "Month", "Year", "GlobalUserName", "VO", "VORole", "VOGroup", "SubmitHost", "InfrastructureType",
    "ServiceLevelType", "NodeCount", "Processors",
)  # fmt: skip
KEYS: Final = {
    "JobRecords": ("Site", "LocalJobId", "EndTime"),
    "Summaries": (*COMMON_KEY, "ServiceLevel"),
    "NormalisedSummaries": COMMON_KEY,
    "SyncRecords": ("Site", "SubmitHost", "Month", "Year"),
}

# Section 3. Job and sync headers bear other blanks round the colon; the summaries' do not.
_HEADERS: Final = (
    (re.compile(r"APEL-individual-job-message\s*:\s*v0\.4"), "JobRecords", True),
    (re.compile(r"APEL-individual-job-message\s*:.*"), "JobRecords", False),
    (re.compile(r"APEL-summary-job-message: v0\.2"), "Summaries", False),
    (re.compile(r"APEL-summary-job-message: v0\.4"), "Summaries", True),
    (re.compile(r"APEL-summary-job-message: v0\.3"), "NormalisedSummaries", False),
    (re.compile(r"APEL-normalised-summary-message: v0\.4"), "NormalisedSummaries", True),
    (re.compile(r"APEL-sync-message\s*:.*"), "SyncRecords", False),
)


def read_text(payload: bytes, now: datetime) -> tuple[str, list[Row]]:
    """The table and its rows as the server stores them, in order. Raises: Refused, for the message as a whole."""
    text = _received(payload)
    header, _, body = text.lstrip("\n").partition("\n")
    for form, table, dictionary in _HEADERS:
        if form.fullmatch(header.rstrip()):
            records = [_pairs(record) for record in body.split("%%") if record.strip()]
            return table, [_row(table, pairs, dictionary, now) for pairs in records]
    raise Refused("header", header)


def _received(payload: bytes) -> str:
    if not payload.isascii():
        raise Refused("not-ascii")
    if re.search(rb"application/(x-)?pkcs7-mime", payload, re.IGNORECASE):
        raise Refused("taken-for-encrypted")
    if re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", payload):
        raise Refused("control-character")
    return payload.decode("ascii")


def _pairs(record: str) -> dict[str, str]:
    pairs = {}
    for line in record.strip().split("\n"):
        key, colon, value = line.partition(":")
        if not colon:
            raise Refused("line-without-colon", line)
        pairs[key.strip()] = value.strip()  # the last of several wins
    return pairs


def _row(table: str, pairs: dict[str, str], dictionary: bool, now: datetime) -> Row:
    given = {key: value for key, value in pairs.items() if value.lower() not in _NOT_GIVEN}
    match table:
        case "JobRecords":
            pairs = {key: value for key, value in pairs.items() if key != "SubmitHostType"}  # which it ignores
            return _job(
                _known(pairs, given, _JOB_TEXTS, (*_JOB_COUNTS, "StartTime", "EndTime"), level=True), dictionary, now
            )
        case "Summaries":
            known = _known(pairs, given, _SUMMARY_TEXTS, _MONTHLY, level=True)
            return _summary(known, dictionary, now)
        case "NormalisedSummaries":
            numbers = (*_MONTHLY, "NormalisedWallDuration", "NormalisedCpuDuration")
            return _normalised(_known(pairs, given, _NORMALISED_TEXTS, numbers, level=not dictionary), dictionary, now)
        case _:
            known = _known(
                pairs, given, {"Site": 255, "SubmitHost": 255}, ("NumberOfJobs", "Month", "Year"), level=False
            )
            return _texts(known, {"Site": 255, "SubmitHost": 255}) | {
                name: _whole(known, name, -_INT_MAX, _INT_MAX) for name in ("NumberOfJobs", "Month", "Year")
            }


def _known(
    pairs: dict[str, str], given: dict[str, str], texts: dict[str, int], numbers: Iterable[str], *, level: bool
) -> dict[str, str]:
    known = {*texts, *numbers, *(("ServiceLevel", "ServiceLevelType") if level else ())}
    unknown = set(pairs) - known
    if unknown:
        raise Refused("unknown-key", sorted(unknown))
    return given


def _texts(given: dict[str, str], limits: dict[str, int]) -> Row:
    if "Site" not in given:
        raise Refused("missing", "Site")
    row = {}
    for name, limit in limits.items():
        row[name] = given.get(name, "None")
        if len(row[name]) > limit:
            raise Refused("too-long", name)
    return row


def _whole(given: dict[str, str], name: str, least: int = 0, most: int = _INT_MAX) -> int:
    if name not in given:
        raise Refused("missing", name)
    if not re.fullmatch(r"-?[0-9]+", given[name]):
        raise Refused("not-whole", f"{name} {given[name]}")
    if not least <= int(given[name]) <= most:
        raise Refused("out-of-range", f"{name} {given[name]}")
    return int(given[name])


def _job(given: dict[str, str], dictionary: bool, now: datetime) -> Row:
    row = _texts(given, _JOB_TEXTS)
    if row["LocalJobId"] == "None":
        raise Refused("missing", "LocalJobId")
    if "FQAN" in given:
        derived = dict(zip(("VO", "VOGroup", "VORole"), split_fqan(given["FQAN"]), strict=True))
        row |= {name: "None" if (value or "").lower() in _NOT_GIVEN else value for name, value in derived.items()}
    for name in _JOB_COUNTS:
        needed = name in ("WallDuration", "CpuDuration")
        row[name] = _whole(given, name) if needed or name in given else None if name.startswith("Memory") else 0
    row |= {name: _whole(given, name, -_BIGINT_MAX, 253_402_300_799) for name in ("StartTime", "EndTime")}
    if row["EndTime"] < row["StartTime"]:
        raise Refused("end-before-start")
    if row["EndTime"] > (now + timedelta(days=2)).timestamp():
        raise Refused("end-in-future")
    return row | _level(given, dictionary, any_type=False)


def _summary(given: dict[str, str], dictionary: bool, now: datetime) -> Row:
    return _texts(given, _SUMMARY_TEXTS) | _month(given, now) | _level(given, dictionary, any_type=True)


def _normalised(given: dict[str, str], dictionary: bool, now: datetime) -> Row:
    row = _texts(given, _NORMALISED_TEXTS) | _month(given, now)
    row["InfrastructureType"] = row.pop("Infrastructure")
    if not dictionary:
        row["ServiceLevelType"] = given.get("ServiceLevelType", "None")
        for name in ("NormalisedWallDuration", "NormalisedCpuDuration"):
            row[name] = _whole(given, name, 0, _BIGINT_MAX)
        return row
    kept = {name: _entry(given.get(name)) for name in ("NormalisedWallDuration", "NormalisedCpuDuration")}
    kinds = {kind for kind, _ in kept.values()}
    if len(kinds) != 1:
        raise Refused("two-benchmarks", kinds)
    row["ServiceLevelType"] = kinds.pop()
    for name, (_, number) in kept.items():
        if not 0 <= number <= _BIGINT_MAX:
            raise Refused("out-of-range", name)
        row[name] = int(number)
    return row


def _month(given: dict[str, str], now: datetime) -> Row:
    row = {
        "Month": _whole(given, "Month", 1, 12),
        "Year": _whole(given, "Year", 1, 9998),
        "NodeCount": _whole(given, "NodeCount"),  # the database refuses a row without
        "Processors": _whole(given, "Processors"),
        "NumberOfJobs": _whole(given, "NumberOfJobs"),
    }
    row |= {name: _whole(given, name, 0, _BIGINT_MAX) for name in ("WallDuration", "CpuDuration")}
    start = datetime(row["Year"], row["Month"], 1, tzinfo=UTC)
    if start > now:
        raise Refused("month-not-begun", f"{row['Year']}-{row['Month']}")
    end = (start + timedelta(days=32)).replace(day=1)
    row |= {name: _whole(given, name, 0, _BIGINT_MAX) for name in ("EarliestEndTime", "LatestEndTime")}
    # The server allows the first second of the next month; there it belongs to that month, so it is refused here.
    if not start.timestamp() <= row["EarliestEndTime"] <= row["LatestEndTime"] < end.timestamp():
        raise Refused("end-times-outside-month")
    return row


def _level(given: dict[str, str], dictionary: bool, *, any_type: bool) -> Row:
    if dictionary:
        if "ServiceLevelType" in given:
            raise Refused("type-beside-dictionary")
        kind, level = _entry(given.get("ServiceLevel"))
    else:
        kind, level = given.get("ServiceLevelType", ""), _decimal(given.get("ServiceLevel", ""))
        if kind.lower() not in _PREFERENCE and not (any_type and kind):
            raise Refused("benchmark", kind)
    if not 0 <= level <= _LARGEST_LEVEL:
        raise Refused("benchmark", level)
    return {"ServiceLevelType": kind, "ServiceLevel": level.quantize(Decimal("0.001"))}


def _decimal(text: str) -> Decimal:
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text):
        raise Refused("benchmark", text)
    return Decimal(text)


def _entry(text: str | None) -> tuple[str, Decimal]:
    """The one entry of a dictionary that is kept, its type in lower case (section 4.5)."""
    found: dict[str, Decimal] = {}
    inner = re.fullmatch(r"\{(.+)\}", text or "")
    if inner is None:
        raise Refused("benchmark", text)
    for entry in inner[1].split(","):
        kind, colon, number = entry.partition(":")
        kind = kind.strip().lower()
        if not colon or kind not in _PREFERENCE or kind in found:
            raise Refused("benchmark", text)
        found[kind] = _decimal(number.strip())
    return next((kind, found[kind]) for kind in _PREFERENCE if kind in found)


def fold(value: Any) -> Any:
    """A value as a key column compares it: texts without case, accents and trailing blanks."""
    return _folded(value) if isinstance(value, str) else value


@cache
def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).rstrip().casefold()


def replaced(table: str, rows: Iterable[Row]) -> list[Row]:
    """What is left in the table after all rows were loaded: of those with equal keys the last."""
    return list({tuple(fold(row[name]) for name in KEYS[table]): row for row in rows}.values())


def summarised(table: str, rows: Iterable[Row], key: tuple[str, ...] = KEYS["Summaries"]) -> dict[tuple[Any, ...], Row]:
    """Jobs, seconds and normalised seconds by `key`, as the server summarises its tables (section 7).

    Normalised seconds are exact for jobs and summaries; of normalised summaries they are what was sent.
    """
    sums: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        full = row | (_single_job(row) if table == "JobRecords" else {})
        if table != "NormalisedSummaries":
            worth = row["ServiceLevel"] / (250 if row["ServiceLevelType"].lower() == "si2k" else 1)
            full |= {f"Normalised{name}": row[name] * worth for name in ("WallDuration", "CpuDuration")}
        total = sums.setdefault(tuple(fold(full[name]) for name in key), {})
        for name in ("NumberOfJobs", "WallDuration", "CpuDuration", "NormalisedWallDuration", "NormalisedCpuDuration"):
            total[name] = total.get(name, 0) + full[name]
    return sums


def _single_job(row: Row) -> Row:
    ended = datetime.fromtimestamp(row["EndTime"], UTC)
    return {"Month": ended.month, "Year": ended.year, "NumberOfJobs": 1}
