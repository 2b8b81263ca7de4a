"""Functions compiled from tables: what they write, and in which order they refuse."""

from __future__ import annotations

import pytest

from publisher.formats.compiled import (
    MADE_AT,
    NO_ESCAPES,
    Escapes,
    Own,
    Piece,
    Scope,
    Shared,
    Written,
    renderer,
)
from publisher.model.errors import Unfit
from publisher.model.published import PublishedJob, UserIdentity
from tests.support.jobs import make_job, make_policy


def test_a_record_is_its_pieces_in_order() -> None:
    fill = renderer(
        [
            f'{{"made": "{MADE_AT}"}} ',
            Own("run.wall_s", before="wall {", after="'s'}"),
            Shared(Scope.USER, lambda who: f" {who.vo}"),
            Own("run.exit_code", Written("value is not None", hex), " exit ", "!", mandatory=False),
            Own("run.gpu_count", Written("value and value > 0"), " gpus ", "!", mandatory=False),
        ],
        NO_ESCAPES,
        {},
    )
    job = make_policy().describe(make_job(wall_s=7, exit_code=255, gpu_count=0))
    assert fill(job, "now") == '{"made": "now"} wall {7\'s\'} atlas exit 0xff!'
    job = make_policy().describe(make_job(wall_s=7, exit_code=None, gpu_count=2))
    assert fill(job, "now") == '{"made": "now"} wall {7\'s\'} atlas gpus 2!'


def test_texts_are_escaped_where_one_of_them_must_be_and_optional_ones_left_out() -> None:
    escaped: list[str] = []

    def escape(text: str) -> str:
        escaped.append(text)
        return text.replace("&", "and").strip()

    escapes = Escapes(frozenset({escape}), lambda text: "&" not in text and " " not in text)
    pieces = [Own("job.local_id", escape), Own("job.job_name", escape, "(", ")", mandatory=False)]
    fill = renderer(pieces, escapes, {})

    def written(local_id: str, name: str) -> str:
        return fill(make_policy().describe(make_job(local_id=local_id, job_name=name)), "")

    assert [written("7", "x"), written("7", "")] == ["7(x)", "7"]
    assert not escaped
    assert [written("7", "a&b"), written("7", " ")] == ["7(aandb)", "7"]
    assert escaped == ["7", "a&b", "7", " "]


def test_the_first_piece_that_cannot_be_written_is_named() -> None:
    def refuse(name: str) -> Unfit:
        return Unfit(name, "no")

    def user(_: UserIdentity) -> str:
        raise refuse("user")

    def wall(_: int) -> str:
        raise refuse("wall")

    pieces: list[Piece] = [Own("run.wall_s", wall), Shared(Scope.USER, user)]
    job: PublishedJob = make_policy().describe(make_job())
    with pytest.raises(Unfit, match="wall"):
        renderer(pieces, NO_ESCAPES, {})(job, "")
    with pytest.raises(Unfit, match="user"):
        renderer(pieces[::-1], NO_ESCAPES, {})(job, "")


def test_what_jobs_share_is_rendered_once_for_all_of_them() -> None:
    """Objects once each, and values such as host names once, whatever object has them."""
    made: list[object] = []

    def render(subject: object) -> str:
        made.append(subject)
        return "x"

    pieces = [Shared(Scope.USER, render), Shared(Scope.HOSTS, render), Shared(Scope.ACCOUNT, render)]
    fill, policy = renderer(pieces, NO_ESCAPES, {}), make_policy()
    for number in range(10):
        assert fill(policy.describe(make_job(local_id=str(number), hosts=("a", "b"))), "") == "xxx"
    assert [type(subject) for subject in made] == [UserIdentity, tuple, tuple]
    fill(policy.describe(make_job(hosts=("a",))), "")
    assert made[3:] == [("a",)]
