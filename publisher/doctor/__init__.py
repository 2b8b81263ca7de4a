"""Doctor: everything that can keep records from going out, looked at before it does. Sends no record and writes nothing.

`findings.py` is the noun; each other file asks about one part: `settings.py` the configuration, `databases.py` the source,
`imports.py` the importers, `state.py` the state, `services.py` certificate, CAs and services, `machine.py` the host. A new
check is a function there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from publisher.commands import choose
from publisher.doctor.databases import check_databases, check_known_databases
from publisher.doctor.findings import Diagnosis, Finding, Measure, State, broken_configuration
from publisher.doctor.imports import check_importers
from publisher.doctor.machine import Host, check_machine
from publisher.doctor.services import check_identity, check_services
from publisher.doctor.settings import check_settings
from publisher.doctor.state import check_directory, check_ledger
from publisher.wiring import Site

__all__ = ["Diagnosis", "Finding", "Host", "Measure", "State", "broken_configuration", "examine"]


def examine(site: Site, host: Host, *, targets: Sequence[str], begins: Callable[[str], None]) -> Diagnosis:
    """Ask everything, whatever was found before. `begins` is told what is looked at next.

    Raises: UsageError for a target that is not configured.
    """
    chosen = choose(site.settings, targets)
    findings: list[Finding] = []
    measures: list[Measure] = []

    def note(part: str, found: Iterable[Finding | Measure]) -> None:
        begins(part)
        for one in found:
            if isinstance(one, Measure):
                measures.append(one)
            else:
                findings.append(one)

    note("the configuration", check_settings(site.settings, chosen))
    note("the accounting data", check_databases(site, chosen))
    note("the importers", check_importers(site))
    note("the state directory", check_directory(site.settings.state, host.free_bytes))
    note("the ledger", check_ledger(site, chosen))
    note("the databases that were read before", check_known_databases(site, chosen))
    note("certificate, key and CAs", check_identity(site, chosen))
    note("the services", check_services(site, chosen, findings))
    note("this machine", check_machine(host, site.settings, chosen))
    return Diagnosis(findings=tuple(findings), measures=tuple(measures))
