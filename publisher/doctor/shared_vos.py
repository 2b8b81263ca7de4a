"""VOs that local jobs share with grid jobs of one site at APEL, whose portal shows both as one.

APEL's specification wants groups of another name for local jobs. A name that begins with `local-`
is taken for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from publisher.config.records import endpoint_url
from publisher.config.targets import destination
from publisher.doctor.findings import Finding, Question, join, not_asked
from publisher.formats import receiver_of
from publisher.jobs.filters import JobFilter
from publisher.model.errors import ConfigError, LedgerError, SourceError
from publisher.model.job import Epoch
from publisher.model.time import Window, epoch
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Target
from publisher.publishing.databases.ask import asked
from publisher.publishing.site import Site
from publisher.sources import BY_INTERFACE
from publisher.sources.base import BatchEntry
from publisher.sources.files.site_mapping import UnmappedVo
from publisher.sources.importers import Importer

WHY: Final = "APEL's portal shows the local and the grid jobs of a site's VO as one"
_RECENT_DAYS: Final = 31
_DAY_S: Final = 86_400
_MOST_NAMED: Final = 10
_NONE_SEEN: Final[Mapping[str, frozenset[str]]] = MappingProxyType({})
_RECEIVER: Final = "APEL"
_LOCAL: Final = "local"
_OWN: Final = "local-"  # begins the name of a VO that local jobs have for themselves
# Of VO rules: fields that only jobs with certificates or tokens have, and names of batch systems,
# by which a site tells local jobs apart.
_OF_CREDENTIALS: Final = frozenset({"issuer", "group"})
_OF_BATCH_SYSTEMS: Final = frozenset({"local_user", "local_group", "project"})


class SharedVos(NamedTuple):
    """VOs of local and of grid jobs that targets send to one place.

    Grid jobs are known to have those of `certain`, and may have those of `possible`.
    """

    targets: tuple[str, ...]
    certain: tuple[str, ...]
    possible: tuple[str, ...]

    @property
    def found(self) -> str:
        """What they share, for people; '' for nothing."""
        if self.certain:
            return f"local jobs have {_named(self.certain)}, and so have grid jobs"
        if self.possible:
            return f"local jobs have {_named(self.possible)}, and so may grid jobs"
        return ""

    @property
    def advice(self) -> str:
        example = (self.certain or self.possible)[0]
        return (
            f"give local jobs VOs of their own, such as {_OWN}{example}, in the importer's map "
            "files, by `unmapped_vo: local` for groups that no file names, or by a rule of "
            "`vo_rules`; change it at a month boundary"
        )


class _Jobs(NamedTuple):
    """The jobs of a source as a target publishes them."""

    infrastructure: str
    known: frozenset[str]  # VOs that the configuration or the jobs themselves name
    may_have_others: bool


class JobSources(NamedTuple):
    """What a site's jobs come from, with the VOs that recent jobs have, by their interface."""

    has_ce: bool
    importers: Sequence[tuple[BatchEntry, Importer]]
    seen: Mapping[str, frozenset[str]] = _NONE_SEEN

    def jobs(self, policy: RecordPolicy) -> Iterator[_Jobs]:
        if self.has_ce:
            yield _Jobs(policy.infrastructure, self._of_ce(policy), not self._seen_of_ce())
        for entry, importer in self.importers:
            yield self._imported(policy, entry, importer)

    def _imported(self, policy: RecordPolicy, entry: BatchEntry, importer: Importer) -> _Jobs:
        options: Any = entry.options
        interface = next(name for name, kind in BY_INTERFACE.items() if kind == entry.type)
        seen = self.seen.get(interface, frozenset())
        without = frozenset() if options.have_vos else _OF_CREDENTIALS
        known = importer.mapped_vos | seen | _by_rules(policy, without)
        if options.unmapped_vo is not UnmappedVo.LOCAL:
            known |= _by_default(policy)
        place = policy.imported.get((interface, endpoint_url(interface, options)))
        place = place or policy.imported[interface, ""]
        return _Jobs(place.infrastructure[0], known, options.have_vos and not seen)

    def _seen_of_ce(self) -> frozenset[str]:
        of_ce = (vos for name, vos in self.seen.items() if name not in BY_INTERFACE)
        return frozenset(chain.from_iterable(of_ce))

    def _of_ce(self, policy: RecordPolicy) -> frozenset[str]:
        """The VOs of its jobs; rules that override none and the default are for jobs without."""
        seen = self._seen_of_ce()
        if seen and "" not in seen:
            return seen | frozenset(rule.vo for rule in policy.vo_rules if rule.override)
        return seen | _by_default(policy) | _by_rules(policy, _OF_BATCH_SYSTEMS)


def shared_vos(targets: Sequence[Target], sources: JobSources) -> Iterator[SharedVos]:
    """Each place at APEL that gets local and grid jobs of one site, with the VOs of both."""
    meeting = defaultdict(list)
    for target in targets:
        if receiver_of(target.format).name == _RECEIVER:
            there = None if target.shadow else destination(target)
            meeting[(there, target.policy.site) if there else target.name].append(target)
    for group in meeting.values():
        sent = [(target, jobs) for target in group for jobs in sources.jobs(target.policy)]
        local = [each for each in sent if each[1].infrastructure == _LOCAL]
        grid = [each for each in sent if each[1].infrastructure != _LOCAL]
        if local and grid:
            yield _shared(tuple(target.name for target in group), local, grid)


def _shared(
    targets: tuple[str, ...],
    local: Sequence[tuple[Target, _Jobs]],
    grid: Sequence[tuple[Target, _Jobs]],
) -> SharedVos:
    certain, possible = [], []
    known = {vo for target, jobs in local for vo in jobs.known if _wants(target, vo)}
    for vo in sorted(vo for vo in known if vo and not vo.startswith(_OWN)):
        others = [jobs for target, jobs in grid if _wants(target, vo)]
        if any(vo in jobs.known and not jobs.may_have_others for jobs in others):
            certain.append(vo)
        elif any(vo in jobs.known or jobs.may_have_others for jobs in others):
            possible.append(vo)
    return SharedVos(targets, tuple(certain), tuple(possible))


def _wants(target: Target, vo: str) -> bool:
    return target.selection(Window()).wants_vo(vo)


def _by_default(policy: RecordPolicy) -> frozenset[str]:
    return frozenset({policy.default_vo.partition("#")[0]})


def _by_rules(policy: RecordPolicy, without: frozenset[str]) -> frozenset[str]:
    return frozenset(rule.vo for rule in policy.vo_rules if rule.field not in without)


def check_shared_vos(site: Site, targets: Sequence[Target]) -> Iterator[Finding]:
    """Ask the site's jobs too, which have VOs that the configuration does not name."""
    chosen = {target.name for target in targets}
    try:
        importers = [
            (entry, site.batch_systems.importer(entry)) for entry in site.batch_systems.entries
        ]
    except ConfigError:  # each map file that cannot be read is a finding of its own
        if len(site.batch_systems.entries) + len(site.accounting.entries) > 1:
            yield not_asked(Question("shared VOs", "source", WHY), "map files cannot be read")
        return
    sources, unread = with_vos_of_jobs(site, JobSources(bool(site.accounting.entries), importers))
    for shared in shared_vos(site.targets, sources):
        if chosen.isdisjoint(shared.targets):
            continue
        question = Question("shared VOs", ", ".join(shared.targets), WHY)
        if shared.found:
            yield question.warning(shared.found, shared.advice)
        else:
            yield not_asked(question, unread) if unread else question.ok("they share none")


def with_vos_of_jobs(site: Site, sources: JobSources) -> tuple[JobSources, str]:
    """Return the sources with what their jobs show, if there is need to ask, and why there is not.

    What cannot be read is a finding of the accounting data; all VOs are possible then.
    """
    if any(shared_vos(site.targets, sources)):
        try:
            return sources._replace(seen=_seen(site)), ""
        except (SourceError, LedgerError):
            return sources, "the accounting data cannot be read"
    return sources, ""


def _seen(site: Site) -> Mapping[str, frozenset[str]]:
    """Return the VOs of recent jobs, by interface. Raises: SourceError, LedgerError."""
    seen: defaultdict[str, set[str]] = defaultdict(set)
    now = epoch(site.process.clock())
    window = Window(start=Epoch(now - _RECENT_DAYS * _DAY_S), end=Epoch(now))
    with asked(site) as jobs:
        for standing, _ in jobs.sums(JobFilter(ended=window), "endpoint"):
            seen[standing.name].add(standing.vo)
    return _frozen(seen)


def _frozen(seen: Mapping[str, Set[str]]) -> Mapping[str, frozenset[str]]:
    return {interface: frozenset(vos) for interface, vos in seen.items()}


def _named(vos: Sequence[str]) -> str:
    return f"the {'VO' if len(vos) == 1 else 'VOs'} {join(vos, _MOST_NAMED)}"
