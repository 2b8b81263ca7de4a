"""All questions of the doctor, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from publisher.config import Settings
from publisher.doctor.configuration import check_settings
from publisher.doctor.databases import check_databases, check_importers, check_known_databases
from publisher.doctor.findings import Diagnosis, Finding, PerfData
from publisher.doctor.host import Host, check_machine
from publisher.doctor.services import check_identity, check_services
from publisher.doctor.state import check_directory, check_ledger
from publisher.pipeline.site import Site, choose


def examine(
    site: Site, settings: Settings, host: Host, *, targets: Sequence[str], begins: Callable[[str], None]
) -> Diagnosis:
    """Ask everything, whatever was found before. `begins` is called with what is examined next.

    Raises: UsageError for a target that is not configured.
    """
    chosen = choose(site.targets, targets)
    findings: list[Finding] = []
    measures: list[PerfData] = []

    def note(part: str, found: Iterable[Finding | PerfData]) -> None:
        begins(part)
        for one in found:
            if isinstance(one, PerfData):
                measures.append(one)
            else:
                findings.append(one)

    note("the configuration", check_settings(settings, choose(settings.targets, targets)))
    note("the accounting data", check_databases(site, settings, chosen))
    note("the importers", check_importers(site))
    note("the state directory", check_directory(site.state, host.free_bytes))
    note("the ledger", check_ledger(site, chosen))
    note("the databases that were read before", check_known_databases(site, chosen))
    note("certificate, key and CAs", check_identity(site, chosen))
    note("the services", check_services(site, chosen, findings))
    note("this machine", check_machine(host, settings, chosen))
    return Diagnosis(findings=tuple(findings), measures=tuple(measures))
