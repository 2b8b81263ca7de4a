"""What is counted of an accepted message: the same from memory as, in a later run, from the outbox."""

from __future__ import annotations

from dataclasses import replace

from publisher.ledger.sql.messages import carried_from, carried_text, entry_of, rendered_text
from publisher.ledger.sqlite import arrival
from tests.test_ledger import job, rendered


def test_what_is_counted_of_a_message_is_what_is_written_down_of_it() -> None:
    records = [
        *rendered(job(1), job(2, local_id='né \udcff "\n'), first_time=False),
        *[replace(one, submit_host="https://ce:443/arex") for one in rendered(job(4), job(3), first_time=True)],
    ]
    carried = carried_from(rendered_text(records))
    assert carried_text(carried) == rendered_text(records)
    assert [entry_of(one) for one in carried] == [one.entry for one in records]
    assert [one.content_bytes for one in carried] == [len(one.content) for one in records]
    counted = arrival.of_rendered(records)
    assert arrival.of_carried(carried) == counted
    assert counted.last_end == job(4).ended_at
    assert len(counted.first) == 2


def test_of_a_message_without_records_nothing_is_counted() -> None:
    assert arrival.of_carried(carried_from(rendered_text([]))) == arrival.of_rendered([])
    assert arrival.of_rendered([]).rows_blob({"job1": "7"}) is None
