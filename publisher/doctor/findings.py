"""What a check has found, why it matters and what to do: the one noun of this room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from publisher.model.errors import ConfigError, PublisherError, gravest
from publisher.transports.base import Step


class State(StrEnum):
    """A warning may become a failure or cost something; a failure keeps records from going out."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One question and its answer. `part` is a target or part of the host; `advice` may be ''.

    `exit_status` (model/errors.py) is that of a failure.
    """

    name: str
    part: str
    state: State
    found: str
    why: str
    advice: str = ""
    exit_status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfData:
    """A number for monitoring; `unit` may be ''; `warn`, `critical`: ranges of Nagios or ''."""

    label: str
    value: int
    unit: str = ""
    warn: str = ""
    critical: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was found, in the order of asking."""

    findings: tuple[Finding, ...]
    measures: tuple[PerfData, ...] = ()

    @property
    def exit_status(self) -> int:
        return gravest(found.exit_status for found in self.findings)

    def count(self, state: State) -> int:
        return sum(found.state is state for found in self.findings)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of what, and why: findings are its answers."""

    name: str
    part: str
    why: str

    def ok(self, found: str) -> Finding:
        return Finding(self.name, self.part, State.OK, found, self.why)

    def warning(self, found: str, advice: str) -> Finding:
        return Finding(self.name, self.part, State.WARNING, found, self.why, advice)

    def failure(self, found: str, advice: str, exit_status: int) -> Finding:
        return Finding(self.name, self.part, State.FAILURE, found, self.why, advice, exit_status)

    def error(self, error: PublisherError, otherwise: str) -> Finding:
        """A failure in another room's words; `otherwise` is the advice where they have none."""
        found, advice = split_advice(str(error))
        return self.failure(found, advice or otherwise, error.exit_status)

    def step(self, step: Step, otherwise: str = "") -> Finding:
        """The answer of a pre-flight step."""
        if step.exit_status:
            found, advice = (step.answer, step.advice) if step.advice else split_advice(step.answer)
            return self.failure(found, advice or otherwise, step.exit_status)
        return self.warning(step.answer, step.advice) if step.advice else self.ok(step.answer)


def split_advice(text: str) -> tuple[str, str]:
    """What happened, and what to do; the second is '' where the text does not say it.

    Messages of ours say what to do after a semicolon, or after the words of somebody else in
    quotation marks and a colon. Whatever is between quotation marks is left whole.
    """
    inside = False
    for at, letter in enumerate(text):
        if letter == '"':
            inside = not inside
            if not inside and text.startswith(": ", at + 1):
                return text[: at + 1], text[at + 3 :]
        elif not inside and text.startswith("; ", at):
            return text[:at], text[at + 2 :]
    return text, ""


def broken_configuration(error: ConfigError) -> Diagnosis:
    """A configuration that does not load: each of its problems, and nothing else can be asked."""
    question = Question("configuration", "configuration", "without it nothing is published at all")
    otherwise = (
        "correct that line; `publisher config check` checks the file, "
        "publisher.yaml(5) explains keys"
    )
    found = [question.error(ConfigError(problem), otherwise) for problem in error.problems]
    return Diagnosis(findings=tuple(found))


def not_asked(question: Question, because: str) -> Finding:
    """A question that another finding keeps from being asked: cannot tell is not all is well."""
    advice = "fix that first, then run doctor again"
    return question.warning(f"not checked, because {because}", advice)


def join(names: Iterable[str], most: int = 5) -> str:
    """Some names for people, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
