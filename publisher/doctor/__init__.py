"""Doctor: everything that can keep records from going out, looked at before it does. Sends no record and writes nothing.

`findings.py` is the noun; each other file asks about one part: `settings.py` the configuration, `databases.py` the source,
`state.py` the state, `services.py` certificate, CAs and services, `machine.py` the host. A new check is a function there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from publisher.commands import choose
from publisher.doctor.databases import check_databases
from publisher.doctor.findings import Diagnosis, Finding, Measure, State, broken_configuration
from publisher.doctor.machine import Host, check_machine
from publisher.doctor.services import check_identity, check_services
from publisher.doctor.settings import check_settings
from publisher.doctor.state import check_directory, check_ledger
from publisher.wiring import Site

__all__ = ["Diagnosis", "Finding", "Host", "Measure", "State", "broken_configuration", "examine"]


def examine(site: Site, host: Host, *, targets: Sequence[str]) -> Diagnosis:
    """Ask everything, whatever was found before. Raises: UsageError for a target that is not configured."""
    chosen = choose(site.settings, targets)
    findings: list[Finding] = []
    measures: list[Measure] = []

    def note(found: Iterable[Finding | Measure]) -> None:
        for one in found:
            if isinstance(one, Measure):
                measures.append(one)
            else:
                findings.append(one)

    note(check_settings(site.settings, chosen))
    note(check_databases(site, chosen))
    note(check_directory(site.settings.state, host.free_bytes))
    note(check_ledger(site, chosen))
    note(check_identity(site, chosen))
    note(check_services(site, chosen, findings))
    note(check_machine(host, site.settings, chosen))
    return Diagnosis(findings=tuple(findings), measures=tuple(measures))
