"""The models against what was measured of the services, and against the other readers of payloads in these tests."""

from __future__ import annotations

import json
from collections.abc import Sized
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fake_ams.tables import Tables
from tests.model_receivers.receivers.apel import Apel, Total, collated, sum_of
from tests.model_receivers.receivers.keep_first import Auditor, Sgas
from tests.model_receivers.receivers.payloads import SUMMARIES, Unreadable, apel_rows, sgas_rows
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text

GOLDEN = Path(__file__).parents[2] / "formats" / "golden"
MAY_5, MAY_9, JUNE_1 = 1_777_982_400, 1_778_328_000, 1_780_315_200


def job(
    local_id: str = "1", end: int = MAY_5, wall: int = 100, user: str = "ann", level: str = "10", site: str = "S"
) -> str:
    return (
        f"Site: {site}\nLocalJobId: {local_id}\nGlobalUserName: {user}\nVO: atlas\nWallDuration: {wall}\n"
        "CpuDuration: 7\n"
        f"StartTime: {end - wall}\nEndTime: {end}\nServiceLevelType: HEPSPEC\nServiceLevel: {level}\n"
        "Processors: 1\nNodeCount: 1\n%%\n"
    )


def jobs(*records: str) -> bytes:
    return ("APEL-individual-job-message: v0.3\n" + "".join(records)).encode()


def summary(count: int = 3, wall: int = 900, user: str = "ann", level: str = "10", version: str = "v0.2") -> bytes:
    benchmark = (
        f"ServiceLevelType: HEPSPEC\nServiceLevel: {level}"
        if version == "v0.2"
        else f"ServiceLevel: {{HEPSPEC: {level}}}"
    )
    text = (
        f"APEL-summary-job-message: {version}\nSite: S\nMonth: 5\nYear: 2026\nGlobalUserName: {user}\nVO: atlas\n{benchmark}\n"
        f"WallDuration: {wall}\nCpuDuration: 9\nNumberOfJobs: {count}\nProcessors: 1\nNodeCount: 1\n%%\n"
    )
    return text.encode()


def shown(*payloads: bytes) -> Total:
    model = Apel()
    for payload in payloads:
        model.take(payload)
    model.summarise()
    return sum_of(model.totals().values())


def test_text_compares_without_case_accents_and_trailing_blanks() -> None:
    assert collated("René  ") == collated("rene") == "rene"
    assert collated(None) == collated("None")


@pytest.mark.parametrize(
    ("second", "count"),
    [
        (job(wall=50), 1),
        (job(local_id="1 "), 1),
        (job(user="bob"), 1),  # under another user it replaces all the same
        (job(end=MAY_9), 2),
        (job(local_id="2"), 2),
        (job(site="T"), 2),
    ],
)
def test_job_records_replace_by_site_local_id_and_end(second: str, count: int) -> None:
    assert shown(jobs(job(), second)).jobs == count


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (summary(count=2, wall=5), 2),
        (summary(count=2, user="ANN"), 2),
        (summary(count=2, version="v0.4"), 2),
        (summary(count=2, level="10.0001"), 2),
        (summary(count=2, level="11"), 5),
        (summary(count=2, user="bob"), 5),
    ],
)
def test_summaries_replace_by_their_key_and_add_under_another(second: bytes, expected: int) -> None:
    assert shown(summary(), second).jobs == expected


def test_summaries_overwrite_what_was_summed_up_of_records() -> None:
    assert shown(jobs(job(), job("2")), summary(count=1)) == Total(1, 900, 9)


def test_nothing_is_deleted_from_what_was_summed_up() -> None:
    model = Apel()
    model.take(jobs(job()))
    model.summarise()
    model.take(jobs(job(level="11")))
    assert sum_of(model.totals().values()).jobs == 1
    model.summarise()
    assert sum_of(model.totals().values()).jobs == 2


def test_a_part_of_a_month_replaces_it_where_records_were_purged() -> None:
    model = Apel()
    model.take(jobs(job(), job("2")))
    model.summarise()
    model.purge((2026, 6))
    model.summarise()
    assert sum_of(model.totals().values()).jobs == 2
    model.take(jobs(job("2")))
    model.summarise()
    assert sum_of(model.totals().values()).jobs == 1


def test_a_row_of_zeros_empties_one() -> None:
    assert shown(summary(), summary(count=0, wall=0)).jobs == 0


def test_a_ticket_deletes_rows_with_their_records_or_records_by_name() -> None:
    model = Apel()
    model.take(jobs(job(), job("2"), job("3", user="bob"), job("4", end=JUNE_1)))
    model.summarise()
    model.delete(records=[("s", "1", MAY_5)])
    assert sum_of(model.totals().values()).jobs == 3
    row = next(key for key in model.totals() if key.user == "bob")
    model.delete(rows=[row])
    assert sum_of(model.totals().values()).jobs == 2


def test_a_ticket_for_rows_alone_lets_their_records_make_them_again() -> None:
    model = Apel()
    model.take(jobs(job()))
    model.summarise()
    model.delete_rows(list(model.totals()))
    assert model.totals() == {}
    model.summarise()
    assert sum_of(model.totals().values()).jobs == 1


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(Unreadable):
        apel_rows(b"APEL-summary-job-message: v0.5\nSite: S\n%%\n")


def usage_record(record_id: str, job_id: str, wall: int) -> bytes:
    namespace = 'xmlns="http://schema.ogf.org/urf/2003/09/urf" xmlns:urf="http://schema.ogf.org/urf/2003/09/urf"'
    text = (
        f'<UsageRecords {namespace}><JobUsageRecord><RecordIdentity urf:recordId="{record_id}" '
        f'urf:createTime="2026-05-05T12:00:00Z"/>'
        f"<JobIdentity><GlobalJobId>{job_id}</GlobalJobId></JobIdentity><WallDuration>PT{wall}S</WallDuration>"
        "<CpuDuration>PT1M</CpuDuration><CpuDuration>PT1S</CpuDuration><Processors>1</Processors><EndTime>2026-05-05T12:00:00Z</EndTime>"
        "<MachineName>ce1.example.org</MachineName></JobUsageRecord></UsageRecords>"
    )
    return text.encode()


def test_sgas_keeps_the_first_record_of_a_job_and_adds_up_its_cpu() -> None:
    model = Sgas()
    model.take(usage_record("ur-1", "a", 10))
    model.take(usage_record("ur-1", "a", 20))
    assert [(row["WallDuration"], row["CpuDuration"]) for row in model.records.values()] == [(10, 61)]
    model.take(usage_record("ur-1", "b", 30))  # of another job it replaces
    assert [row["WallDuration"] for row in model.records.values()] == [30]


def test_sgas_refuses_a_record_without_machine_name() -> None:
    with pytest.raises(Unreadable):
        sgas_rows(usage_record("ur-1", "a", 10).replace(b"ce1.example.org", b""))


def test_auditor_keeps_the_first() -> None:
    model = Auditor()
    for cpu in (10, 20):
        components = [{"name": "Cores", "amount": 1, "scores": []}, {"name": "TotalCPU", "amount": cpu, "scores": []}]
        times = {"start_time": "2026-05-05T11:00:00Z", "stop_time": "2026-05-05T12:00:00Z"}
        model.take(json.dumps([{"record_id": "ur-1", "meta": {}, "components": components, **times}]).encode())
    assert [(row["WallDuration"], row["CpuDuration"]) for row in model.records.values()] == [(3600, 10)]


@pytest.mark.parametrize(
    "golden", sorted(path.name for path in GOLDEN.iterdir() if path.name.startswith(("apel-job", "apel-s", "car")))
)
def test_they_agree_with_the_other_readers(golden: str) -> None:
    """The same rows, the same usage, and as many keys."""
    payload, now = (GOLDEN / golden).read_bytes(), datetime.now(UTC)
    payload = payload.replace(b"VERSION", b"1")
    table, rows = apel_rows(payload)
    name, others = ("JobRecords", read_car(payload, now)) if golden == "car.xml" else read_text(payload, now)
    assert (table, len(rows)) == (name, len(others))
    for column in ("WallDuration", "CpuDuration", "NumberOfJobs", "Processors"):
        assert [row.get(column) or 0 for row in rows] == [row.get(column) or 0 for row in others], column
    model, tables = Apel(), Tables()
    model.take(payload)
    for row in others:
        tables.replace(name, row)
    mine: dict[str, Sized] = {
        "JobRecords": model.jobs,
        SUMMARIES: model.summaries,
        "NormalisedSummaries": model.normalised,
        "SyncRecords": model.sync,
    }
    assert len(mine[table]) == len(tables.rows(name))
