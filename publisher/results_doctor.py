"""What doctor found: as a JSON object, as lines for people, as one line for Nagios. publisher(1) documents all three."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from publisher.doctor import Diagnosis, Finding, Measure, State
from publisher.results_nagios import nagios_line, performance

_NAGIOS: Final[Mapping[State, tuple[int, str]]] = {
    State.OK: (0, "OK"),
    State.WARNING: (1, "WARNING"),
    State.FAILURE: (2, "CRITICAL"),
}
_GRAVEST_FIRST: Final = (State.FAILURE, State.WARNING, State.OK)


def doctor_json(diagnosis: Diagnosis) -> Mapping[str, Any]:
    return {
        "findings": [
            {
                "name": one.name,
                "part": one.part,
                "state": str(one.state),
                "found": one.found,
                "why": one.why,
                "advice": one.advice or None,
                "status": one.exit_status,
            }
            for one in diagnosis.findings
        ],
        "measures": [
            {
                "label": one.label,
                "value": one.value,
                "unit": one.unit or None,
                "warn": one.warn or None,
                "critical": one.critical or None,
            }
            for one in diagnosis.measures
        ],
        "ok": diagnosis.count(State.OK),
        "warnings": diagnosis.count(State.WARNING),
        "failures": diagnosis.count(State.FAILURE),
        "exit": diagnosis.exit_status,
    }


def doctor_lines(diagnosis: Diagnosis) -> list[str]:
    """A line for what is well, three for what is not, in the order of asking, and the count."""
    lines = []
    for one in diagnosis.findings:
        lines.append(f"{one.state:<8} {_named(one)}: {one.found}")
        if one.state is not State.OK:
            lines += [f"         why: {one.why}", f"         do:  {one.advice}"]
    counts = ", ".join(f"{diagnosis.count(state)} {word}" for state, word in _COUNTED)
    return [*lines, "", f"{counts}; nothing was sent"]


_COUNTED: Final = ((State.OK, "ok"), (State.WARNING, "warnings"), (State.FAILURE, "failures"))


def doctor_nagios(diagnosis: Diagnosis) -> tuple[str, int]:
    """The plug-in's line and its exit status. Spec: Monitoring Plugins Development Guidelines, sections 2 and 3."""
    worst = next(state for state in _GRAVEST_FIRST if state is State.OK or diagnosis.count(state))
    status, word = _NAGIOS[worst]
    told = [
        f"{_named(one)}: {one.found}"
        for state in _GRAVEST_FIRST[:2]
        for one in diagnosis.findings
        if one.state is state
    ]
    text = "; ".join(told) or f"{len(diagnosis.findings)} questions asked, all is well"
    counts = [
        Measure(label="failures", value=diagnosis.count(State.FAILURE), critical="0"),
        Measure(label="warnings", value=diagnosis.count(State.WARNING), warn="0"),
    ]
    data = [
        performance(one.label, one.value, one.unit, one.warn, one.critical) for one in [*counts, *diagnosis.measures]
    ]
    return nagios_line(word, text, data), status


def _named(one: Finding) -> str:
    part = Path(one.part).name if one.part.startswith("/") else one.part
    return one.name if part in ("host", "state", "credentials", "configuration", "source") else f"{one.name} ({part})"
