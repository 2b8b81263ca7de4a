"""Work on a thread of its own: what comes of it comes to whoever asks, and to nobody else."""

from __future__ import annotations

import pytest

from publisher.transports.background import BackgroundTask


def test_a_result_is_waited_for() -> None:
    assert BackgroundTask(lambda: sum(range(1_000_000))).result() == 499_999_500_000


@pytest.mark.parametrize("error", [ValueError("a"), KeyError("b"), SystemExit(3)], ids=repr)
def test_what_the_work_raises_is_raised_where_its_result_is_asked_for(
    error: BaseException, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    begun = BackgroundTask(work)
    with pytest.raises(type(error)) as raised:
        begun.result()
    assert raised.value is error
    assert capfd.readouterr().err == "", "no traceback for the user"
