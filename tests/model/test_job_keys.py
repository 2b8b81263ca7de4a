"""Keys and fingerprints of runs: ledgers hold them for years, so how they are told must never change."""

from hashlib import blake2b
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from publisher.model.job import Epoch, JobId, RunColumns, job_digest, job_key, values_fingerprint
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


@given(job_id=TEXTS, local_id=TEXTS)
def test_a_key_is_eight_bytes_of_digest_of_the_job_and_three_of_the_run(job_id: str, local_id: str) -> None:
    key = job_key(job_id, local_id)
    assert key == plain_digest(job_id, 8) + plain_digest(local_id, 3)
    assert job_digest(job_id) == key[:8]
    assert make_job(job_id=JobId(job_id), local_id=local_id).key == key


@given(status=TEXTS, times=st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), nodes=COUNTS, cores=COUNTS)
def test_a_fingerprint_is_a_checksum_of_the_written_tuple(
    status: str, times: tuple[int, int, int, int], nodes: int | None, cores: int | None
) -> None:
    ended, wall, user, kernel = times
    run = make_job(
        status=status,
        ended_at=ended,
        wall_s=wall,
        cpu_user_s=user,
        cpu_kernel_s=kernel,
        node_count=nodes,
        cpu_count=cores,
    )
    told = (status, ended, wall, user, kernel, nodes or 0, cores or 0)
    plain = crc32(repr(told).encode("utf-8", "surrogateescape")) & 0xFFFFFF or 1
    assert run.fingerprint == values_fingerprint(*told) == plain
    columns = RunColumns(
        "a.db", [1], [run.job_id], [run.local_id], [Epoch(ended)], [wall], [user], [kernel], [run._replace(wall_s=0)]
    )
    assert columns.fingerprints() == [plain]
    joined = "gpus=2"
    assert run._replace(joined=joined).fingerprint == columns._replace(joined=[joined]).fingerprints()[0] != plain
    assert columns.keys() == [run.key]


def test_keys_and_fingerprints_of_today() -> None:
    assert job_key("ICzMDmPbtb5nzwM7Dmq", "4711").hex() == "b92908fa0946df6d5e5d15"
    assert values_fingerprint("completed", 1_740_959_304, 761, 433, 48, 1, 4) == 9054006
