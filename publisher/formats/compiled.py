"""Functions that are compiled from a format's tables when it is loaded (hot path).

A record is a sequence of pieces: constant text, what jobs share, and the run's own values. Of

    Own("run.wall_s", before="<WallDuration>PT", after="S</WallDuration>")

becomes, in the one function that renders a job,

    v0 = run.wall_s
    return f"<WallDuration>PT{v0}S</WallDuration>"

as `collections.namedtuple` makes its constructors. Only texts of our own tables become source, no
value of a job ever does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from publisher.model.published import PublishedJob

Subject = TypeVar("Subject")
Made = TypeVar("Made", bound=Sequence[str])

_MOST_TEXT: Final = 1_500  # characters of what is kept of one
_REMEMBERED: Final = 20_000  # policy shares as many users and places
MADE_AT: Final = "\0made at\0"  # stands in constant text for the time at which a record is made
_CREATED: Final = "{created}"


class Scope(Enum):
    """What a value is from, as an expression over `job`, a `PublishedJob`, and `run`, its job.

    What jobs share is rendered once.
    """

    RUN = ""
    USER = "job.who"
    ACCOUNT = "job.local_user, job.local_group"
    PROJECTS = "job.projects"
    WHERE = "job.where"
    BENCHMARK = "job.benchmark"
    HOSTS = "run.hosts"
    ENVIRONMENTS = "run.runtime_environments"


# Others are few objects with many texts, which are known by identity: to hash the texts costs more.
_BY_VALUE: Final = frozenset({Scope.ACCOUNT, Scope.PROJECTS, Scope.HOSTS, Scope.ENVIRONMENTS})


class Written(NamedTuple):
    """How a value is written for which a condition over `value` holds; of others nothing is."""

    given: str
    write: Callable[[Any], str] = str


class Shared(NamedTuple):
    """A piece that jobs of one user, account, place, benchmark or the like have in common."""

    of: Scope
    render: Callable[[Any], str]


class Own(NamedTuple):
    """A value of the run itself: an expression over `job` and `run`, and the text around it.

    Without `mandatory`, nothing is written where its text is empty.
    """

    value: str
    write: Callable[[Any], str] | Written = str
    before: str = ""
    after: str = ""
    mandatory: bool = True


Piece = str | Shared | Own
Fill = Callable[[PublishedJob, str], str]


class Escapes(NamedTuple):
    """Writers of texts, and whether texts joined by slashes are plain: none of them is changed."""

    writers: frozenset[Callable[[str], str]]
    are_plain: Callable[[str], object]


NO_ESCAPES: Final = Escapes(frozenset(), bool)


class Once(Generic[Subject, Made]):
    """Makes text, or several texts, of each subject once (hot path).

    Subjects are known by identity, or, with `by_value`, by what they are: to hash a tuple of many
    texts costs more than to make some. Each is kept with what was made, so that its id stays its
    own. Long texts are not kept, and a full cache is emptied.
    """

    def __init__(
        self,
        make: Callable[[Subject], Made],
        *,
        by_value: bool = False,
        limit: int = _REMEMBERED,
    ) -> None:
        self._make = make
        self._by_value = by_value
        self._limit = limit
        self.known: dict[object, tuple[Made, Subject]] = {}

    def __call__(self, subject: Subject) -> Made:
        """Return what is made of a subject. Raises: what the function that makes it raises."""
        key: object = subject if self._by_value else id(subject)
        known = self.known.get(key)
        if known is not None:
            return known[0]
        made = self._make(subject)
        if sum(map(len, made)) <= _MOST_TEXT:
            if len(self.known) >= self._limit:
                self.known.clear()
            self.known[key] = made, subject
        return made


def function_of(name: str, lines: Sequence[str], names: Mapping[str, object]) -> Any:
    """Return the function with a name and source; `names`: what it may use."""
    namespace = dict(names)
    exec("\n".join(lines), namespace)  # noqa: S102  # as dataclasses and namedtuple do, of our own tables
    return namespace[name]


def renderer(pieces: Sequence[Piece], escapes: Escapes, names: Mapping[str, object]) -> Fill:
    """Return the function that renders a job, made at a time that is given as text.

    `names`: functions that expressions may use. The function raises Unfit where a rule about what
    jobs share, or a writer, does: the first in the order of the pieces.
    """
    source = _FunctionText(escapes, names)
    for piece in pieces:
        source.add(piece)
    fill: Fill = function_of("fill", source.lines(), source.names)
    return fill


class _FunctionText:
    """The source of a function as it grows."""

    def __init__(self, escapes: Escapes, names: Mapping[str, object]) -> None:
        self.names = {**names} | {"are_plain": escapes.are_plain}
        self._escapes = escapes
        self._body: list[str] = []
        self._texts: list[str] = []  # that may have to be escaped
        self._careful: list[str] = []
        self._after: list[str] = []  # what is done with these
        self._format: list[str] = []

    def add(self, piece: Piece) -> None:
        at = f"v{len(self._format)}"
        if isinstance(piece, str):
            self._format.append(_literal(piece))
        elif isinstance(piece, Shared):
            self._add_shared(at, piece)
        else:
            self._add_own(at, piece)

    def lines(self) -> list[str]:
        escape = []
        if self._texts:
            texts = ", ".join(self._texts)
            escape = [
                f"if not are_plain('/'.join(({texts},))):",
                *(f"    {one}" for one in self._careful),
            ]
        body = ["run = job.job", *self._body, *escape, *self._after]
        text = "".join(self._format)
        return [
            "def fill(job, created):",
            *(f"    {line}" for line in body),
            f"    return f{text!r}",
        ]

    def _add_shared(self, at: str, piece: Shared) -> None:
        by_value = piece.of in _BY_VALUE
        once = Once(piece.render, by_value=by_value)
        self.names |= {f"known_{at}": once.known, f"new_{at}": once}
        key = "subject" if by_value else "id(subject)"
        self._body += [
            f"subject = {piece.of.value}",
            f"found = known_{at}.get({key})",
            f"{at} = new_{at}(subject) if found is None else found[0]",
        ]
        self._format.append(f"{{{at}}}")

    def _add_own(self, at: str, piece: Own) -> None:
        self._body.append(f"{at} = {piece.value}")
        given, write = "", piece.write
        if isinstance(write, Written):
            given, write = write
        self.names[f"write_{at}"] = write
        statements = self._body
        if write in self._escapes.writers:
            self._texts.append(at)
            self._careful.append(f"{at} = write_{at}({at})")
            statements = self._after
        elif write is not str:
            condition = f" if {_over(at, given)} else ''" if given else ""
            statements.append(f"{at} = write_{at}({at}){condition}")
            given = ""
        before, after = _literal(piece.before), _literal(piece.after)
        if piece.mandatory:
            self._format.append(f"{before}{{{at}}}{after}")
            return
        text = f"{before}{{{at}}}{after}"
        statements.append(f"{at} = f{text!r} if {_over(at, given or 'value')} else ''")
        self._format.append(f"{{{at}}}")


def _over(name: str, condition: str) -> str:
    return condition.replace("value", name)


def _literal(text: str) -> str:
    """Return constant text as an f-string has it."""
    return text.replace("{", "{{").replace("}", "}}").replace(MADE_AT, _CREATED)
