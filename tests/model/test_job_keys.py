"""Keys and digests of runs: ledgers hold them for years, so how they are made must never change."""

from hashlib import blake2b
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from publisher.model.job import Epoch, JobId, RowRef, has_local_id, run_digest, run_key, values_fingerprint, was_joined
from tests.support.jobs import make_job

# What SQLite may hold, with bytes that are no UTF-8 as surrogate escapes.
TEXTS = st.text(
    st.characters(codec="utf-8") | st.integers(0xDC80, 0xDCFF).map(chr),
    max_size=60,
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.none() | st.integers(0, 2**40)


def plain_digest(text: str, size: int) -> bytes:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=size).digest()


@given(local_id=TEXTS)
def test_three_bytes_of_digest_tell_the_runs_of_a_job_apart_at_a_receiver(local_id: str) -> None:
    assert run_digest(local_id) == plain_digest(local_id, 3)


@given(submitted_at=st.integers(0, 2**32 - 1), job_id=TEXTS, local_id=TEXTS)
def test_a_run_key_is_the_submission_seven_bytes_of_the_job_and_four_of_the_run(
    submitted_at: int, job_id: str, local_id: str
) -> None:
    key = run_key(submitted_at, job_id, local_id)
    assert key == submitted_at.to_bytes(4, "big") + plain_digest(job_id, 7) + plain_digest(local_id, 4)
    job = make_job(submitted_at=Epoch(submitted_at), job_id=JobId(job_id), local_id=local_id)
    assert job.run_key == key
    assert job.key == key[4:]
    assert has_local_id(key) == bool(local_id)


@given(values=st.tuples(TEXTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, COUNTS, COUNTS, TEXTS))
def test_a_digest_is_of_the_written_tuple_of_what_counts(values: tuple[Any, ...]) -> None:
    status, ended, wall, user, kernel, nodes, cores, joined = values
    named = {"status": status, "ended_at": ended, "wall_s": wall, "cpu_user_s": user, "cpu_kernel_s": kernel}
    job = make_job(**named, node_count=nodes, cpu_count=cores, joined=joined)
    told = (*values[:7], job.user, job.vo, job.fqans, job.queue, job.benchmark, joined)
    digest = plain_digest(repr(told), 8) + b"+" * bool(joined)
    assert was_joined(digest) == bool(joined)
    assert job.values_digest == digest
    assert job._replace(memory_kib=1, row=RowRef("other.db", 9), hosts=()).values_digest == digest
    assert job.fingerprint == int.from_bytes(digest[:3])


def test_keys_and_fingerprints_of_today() -> None:
    assert run_key(1_740_950_000, "ICzMDmPbtb5nzwM7Dmq", "4711").hex() == "67c4c9f0120286ee2c9997fa667070"
    assert run_digest("4711").hex() == "5e5d15"
    assert values_fingerprint("completed", 1_740_959_304, 761, 433, 48, 1, 4) == 9054006
