"""sacct, run: the jobs of a cluster that ended in a time, as text in a temporary file.

The one program that this project starts. Its arguments are fixed but for the cluster, the times and
the columns; there is no shell. It gets the few variables of the environment that it needs, answers
in UTC and in epoch seconds, and is ended when it takes too long or prints without end. Fields are
separated by a text that nobody can know beforehand, so that no name of a job looks like a line.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import choice
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from publisher.model.errors import SourceError
from publisher.sources.files.log_files import LogFile, clean
from publisher.sources.slurm.header import COLUMNS

# Every state in which a job, or a part of it, is over.
_STATES: Final = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RS,RV,TO"
_PASSED_ON: Final = frozenset({"PATH", "SLURM_CONF", "LD_LIBRARY_PATH", "HOME"})
_MOST_BYTES: Final = 2**31
_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_MOST_COMPLAINT: Final = 4096
_LOOK_EVERY_S: Final = 0.1
# Characters that no field has, and that end no line: others would be found in half the speed.
_CONTROLS: Final = [chr(code) for code in (*range(0x01, 0x09), *range(0x0E, 0x1F))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sacct:
    """sacct of one cluster. `wait(seconds)` says whether a stop was asked for."""

    command: Sequence[str]
    cluster: str
    environment: Mapping[str, str]
    timeout_s: float
    wait: Callable[[float], bool]

    @contextmanager
    def ended(self, begin: int, end: int, columns: Sequence[str]) -> Iterator[LogFile]:
        """The jobs that ended in [begin, end], in epoch seconds. Raises: SourceError."""
        arguments = [
            *("--allusers", "--duplicates", "--parsable2", f"--delimiter={_delimiter()}"),
            *(f"--clusters={self.cluster}", f"--state={_STATES}", f"--format={','.join(columns)}"),
            *(f"--starttime={_local(begin)}", f"--endtime={_local(end)}"),
        ]
        with TemporaryFile() as answer:
            self._run(arguments, answer)
            if not answer.tell():
                raise self._trouble(
                    "printed nothing, not even a header; check that slurmdbd answers"
                )
            answer.seek(0)
            yield LogFile(Path(self.answer_from(begin)), answer, compressed=True, modified=0.0)

    def answer_from(self, begin: int) -> str:
        """What an answer is called, where lines of it are set aside."""
        return f"{self.command[0]} from {_local(begin)}"

    def begin_of(self, answer: Path) -> int | None:
        """From when such an answer had jobs; None for a file."""
        command, mark, begin = str(answer).rpartition(" from ")
        if command != self.command[0] or not mark or not _MOMENT.fullmatch(begin):
            return None
        return int(datetime.strptime(begin, _FORMAT).replace(tzinfo=UTC).timestamp())

    def columns(self) -> tuple[str, ...]:
        """Those of our columns that this version knows. Raises: SourceError."""
        with TemporaryFile() as answer:
            self._run(["--helpformat"], answer)
            answer.seek(0)
            known = set(answer.read(_MOST_COMPLAINT * 16).decode("utf-8", "replace").split())
        return tuple(column for column in COLUMNS if column in known)

    def _run(self, arguments: Sequence[str], answer: BinaryIO) -> None:
        """Raises: SourceError."""
        environment = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
        environment |= {
            name: self.environment[name] for name in _PASSED_ON & self.environment.keys()
        }
        with TemporaryFile() as complaint:
            try:
                process = subprocess.Popen(
                    [*self.command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=answer,
                    stderr=complaint,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise self._trouble(
                    f"cannot be started: {error.strerror or error}; install Slurm's client, "
                    "or give its path as command"
                ) from error
            try:
                self._watch(process, answer)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            complaint.seek(0)
            text = complaint.read(_MOST_COMPLAINT).decode("utf-8", "replace")
            text = clean("; ".join(text.split("\n")).strip("; "))
        if process.returncode:
            ended = f"ended with status {process.returncode}"
            raise self._trouble(f"{ended}: {text or 'without a word'}")
        answer.seek(0, os.SEEK_END)

    def _watch(self, process: subprocess.Popen[bytes], answer: BinaryIO) -> None:
        """Raises: SourceError when it takes too long, prints too much, or we are to stop."""
        waited_s = 0.0
        while True:
            try:
                process.wait(_LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                waited_s += _LOOK_EVERY_S
            else:
                return
            if waited_s >= self.timeout_s:
                limit = f"{self.timeout_s:g} s"
                raise self._trouble(f"no answer within {limit}; check that slurmdbd is healthy")
            if os.fstat(answer.fileno()).st_size > _MOST_BYTES:
                raise self._trouble(f"printed more than {_MOST_BYTES:,} bytes for one day; ended")
            if self.wait(0):
                raise self._trouble("ended, because a stop was asked for; the next round reads on")

    def _trouble(self, what: str) -> SourceError:
        return SourceError(f"{self.command[0]}: {what}")


def _delimiter() -> str:
    return "\x1f" + "".join(choice(_CONTROLS) for _ in range(6))


def _local(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime(_FORMAT)
