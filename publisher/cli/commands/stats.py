"""`stats`: statistics of jobs, published or not; and the filters that `export` takes too."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from publisher.cli.commands import Context
from publisher.cli.logs import notice
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    duration,
    hours,
    moment_text,
    print_line,
    print_list,
    print_result,
    print_rows,
    size,
)
from publisher.cli.parser import FROM_HELP, TO_HELP, Form, add_flag, add_json
from publisher.cli.site import LiveSite
from publisher.cli.sources import incomplete
from publisher.jobs.filters import JobFilter
from publisher.jobs.queries import JobQueries
from publisher.jobs.sums import GROUPINGS, Totals
from publisher.model import time as when
from publisher.model.errors import UsageError
from publisher.model.job import JobId
from publisher.model.text import NO_VO
from publisher.model.time import Window
from publisher.publishing.databases.ask import asked
from publisher.publishing.databases.prune import refuse_pruned
from publisher.publishing.site import Site
from publisher.reporting import statistics
from publisher.reporting.statistics import JobStatistics
from publisher.sources import offered

_SUMS: Final = (
    *("jobs", "in_progress", "wall_s", "wall_core_s", "cpu_s", "cpu_user_s", "cpu_kernel_s"),
    *("stage_in_bytes", "stage_out_bytes", "cores_unknown", "cpu_unknown", "gpu_jobs", "gpu_s"),
)
_AN_ENDPOINT: Final = "org.nordugrid.arcrest"
_COLUMNS: Final = (*_SUMS, "first_submitted", "last_ended")
# Of the table for people: the others are left out where no group has any.
_ALWAYS_SHOWN: Final = frozenset(("jobs", "wall_s", "wall_core_s", "cpu_s"))
_NAMELESS: Final = {"vo": NO_VO}
_SHOWN: Final = {
    "jobs": "jobs",
    "in_progress": "in progress",
    "wall_s": "wall",
    "wall_core_s": "core",
    "cpu_s": "CPU",
    "gpu_s": "GPU",
    "stage_in_bytes": "staged in",
    "stage_out_bytes": "staged out",
    "first_submitted": "first submitted",
    "last_ended": "last ended",
}
# Outputs of one number, and the column that has it.
_SINGLE: Final = {
    "jobcount": "jobs",
    "walltime": "wall_s",
    "cputime": "cpu_s",
    "data-staged-in": "stage_in_bytes",
    "data-staged-out": "stage_out_bytes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    add_database_file(parser)
    add_output(parser, "brief", *_SINGLE, "wlcgvos", "fqans", "users", "jobids", "json")
    text = f"also a table: by {', '.join(GROUPINGS)}"
    parser.add_argument("--by", choices=tuple(GROUPINGS), metavar="WHAT", help=text)
    printed = parser.add_mutually_exclusive_group()
    add_json(printed)
    add_flag(parser, "--seconds", text="times in seconds, not in hours (always so with --as)")
    hidden = argparse.SUPPRESS  # the same as --as csv
    printed.add_argument("--csv", dest="form", action="store_const", const=Form.CSV, help=hidden)


def add_output(parser: argparse.ArgumentParser, *outputs: str) -> None:
    """`--output` as in `arcctl accounting`; the first is the default."""
    text, first = f"one of {', '.join(outputs)} (default {outputs[0]})", outputs[0]
    words = ("-o", "--output")
    parser.add_argument(*words, choices=outputs, default=first, metavar="WHAT", help=text)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = chosen_database(arguments, context.load())
    if arguments.by and arguments.output != "brief":
        raise UsageError("--by prints a table of totals and cannot be combined with --output")
    if arguments.output == "json" and arguments.form in (Form.CSV, Form.JSON_LINES):
        raise UsageError(f"--as {arguments.form} and --output json contradict each other")
    with asked(site, apart=bool(arguments.database_file)) as jobs:
        wanted = job_filter(arguments, site, jobs)
        refuse_pruned(site, wanted.ended)
        rows = statistics.rows_with(site, wanted)
        if arguments.output == "jobids":
            _print_job_ids(arguments, jobs.ids(wanted, rows))
        else:
            by = "fqan" if arguments.output in ("fqans", "json") else arguments.by
            tally = statistics.stats(jobs, wanted, by=by, rows=rows)
            _print_totals(arguments, wanted, tally)
    return _status(arguments, site)


def _print_totals(arguments: argparse.Namespace, wanted: JobFilter, tally: JobStatistics) -> None:
    if arguments.form in (Form.CSV, Form.JSON_LINES):
        columns, rows = _rows(arguments, tally)
        print_rows(rows, arguments.form, columns)
    else:
        as_json: Callable[[JobStatistics], Json] = partial(_as_json, wanted)
        form = arguments.form
        if form is Form.TABLE and arguments.output == "json":
            as_json, form = _arc_json, Form.JSON
        print_result(tally, as_json, partial(_as_text, arguments), form=form)


def _status(arguments: argparse.Namespace, site: LiveSite) -> int:
    """One database was asked for, or all of them must be there."""
    return 0 if arguments.database_file else incomplete(site)


def _as_json(wanted: JobFilter, tally: JobStatistics) -> Json:
    return {
        "end_from": moment_text(wanted.ended.start),
        "end_till": moment_text(wanted.ended.end),
        "start_from": moment_text(wanted.submitted.start),
        **_totals_json(tally.totals),
        "unreadable": tally.totals.unreadable,
        "states": [{"state": state, "jobs": jobs} for state, jobs in sorted(tally.states.items())],
        "vos": sorted(tally.vos),
        "users": sorted(tally.users),
        "local_users": sorted(tally.local_users),
        "groups": [{"name": name, **_totals_json(each)} for name, each in _groups(tally)],
    }


def _groups(tally: JobStatistics) -> list[tuple[str, Totals]]:
    return sorted(tally.groups.items())


def _totals_json(totals: Totals) -> Json:
    return {
        **attributes(totals, *_SUMS),
        "first_submitted": moment_text(totals.first_submitted_at),
        "last_ended": moment_text(totals.last_ended_at),
    }


def _arc_json(tally: JobStatistics) -> Json:
    """The objects of `arcctl accounting stats -o json` of ARC 6 and 7: seconds, bytes, epochs."""
    totals = tally.totals
    return {
        "count": totals.jobs,
        "walltime": totals.wall_s,
        "cpuusertime": totals.cpu_user_s,
        "cpukerneltime": totals.cpu_kernel_s,
        "cputime": totals.cpu_s,
        "stagein": totals.stage_in_bytes,
        "stageout": totals.stage_out_bytes,
        "rangestart": totals.first_submitted_at,
        "rangeend": totals.last_ended_at,
        "minstarttime": totals.first_submitted_at,
        "minendtime": totals.first_ended_at,
        "maxendtime": totals.last_ended_at,
        "users": sorted(tally.users),
        "wlcgvos": sorted(tally.vos),
        "fqans": _fqans(tally),
    }


def _fqans(tally: JobStatistics) -> list[str]:
    return sorted(name for name in tally.groups if name)


def _print_job_ids(arguments: argparse.Namespace, job_ids: Iterator[JobId]) -> None:
    """Print ids one by one while they are read: there may be ten million."""
    if arguments.form is Form.JSON:
        print_list("job_ids", job_ids, form=Form.JSON, after={})
    elif arguments.form is Form.TABLE:
        for job_id in job_ids:
            print_line(job_id)
    else:
        print_rows(({"job_id": job_id} for job_id in job_ids), arguments.form, ("job_id",))


def _rows(
    arguments: argparse.Namespace, tally: JobStatistics
) -> tuple[Sequence[str], Iterable[Json]]:
    """For programs: columns, and what is in them."""
    single = _single(arguments.output, tally)
    if single is not None:
        name, values = single
        return (name,), ({name: value} for value in values)
    if not arguments.by:
        return _COLUMNS, [_totals_json(tally.totals)]
    rows = ({arguments.by: name, **_totals_json(each)} for name, each in _groups(tally))
    return (arguments.by, *_COLUMNS), rows


def _as_text(arguments: argparse.Namespace, tally: JobStatistics) -> Iterator[Part]:
    single = _single(arguments.output, tally)
    if single is not None:
        yield from single[1]
        return
    time = duration if arguments.seconds else hours
    yield from _brief_lines(tally, time)
    if arguments.by:
        yield ""
        yield _table(arguments.by, tally, in_seconds=arguments.seconds)


def _table(by: str, tally: JobStatistics, *, in_seconds: bool) -> TextTable:
    """Return a row a group, who used most first; months in their order."""
    groups = _groups(tally)
    if by != "month":
        groups.sort(key=lambda group: group[1].wall_core_s, reverse=True)
    values = [_totals_json(totals) for _, totals in groups]
    used = {key for one in values for key in _SHOWN if one[key]}
    shown = [key for key in _SHOWN if key in _ALWAYS_SHOWN | used]
    rows = []
    for (name, _), one in zip(groups, values, strict=True):
        cells = [_cell(key, one[key], in_seconds=in_seconds) for key in shown]
        rows.append((name or _NAMELESS.get(by, "(none)"), *cells))
    names = [_SHOWN[key] + _unit(key, in_seconds=in_seconds) for key in shown]
    return TextTable((by, *names), rows, "no job is among them")


def _single(output: str, tally: JobStatistics) -> tuple[str, list[str]] | None:
    """Return what an output of one column is called, and its values; None for the totals."""
    if name := _SINGLE.get(output):
        return name, [str(getattr(tally.totals, name))]
    lists = {
        "wlcgvos": ("vo", tally.vos),
        "fqans": ("fqan", _fqans(tally)),
        "users": ("user", tally.users | tally.local_users),
    }
    if output not in lists:
        return None
    name, values = lists[output]
    return name, sorted(values)


def _brief_lines(tally: JobStatistics, time: Callable[[int], str]) -> list[str]:
    """Return totals for people, each with its unit."""
    totals = tally.totals
    states = [f"{state or '(none)'} {jobs:,}" for state, jobs in sorted(tally.states.items())]
    cpu = f"user {time(totals.cpu_user_s)}, kernel {time(totals.cpu_kernel_s)}"
    overview = [
        ("jobs", _counted(totals.jobs, states)),
        ("wall time", time(totals.wall_s)),
        ("core time", f"{time(totals.wall_core_s)}: wall time x cores"),
        ("CPU time", f"{time(totals.cpu_s)}: {cpu}"),
        ("GPU time", _gpu_time(totals, time)),
        ("staged in", size(totals.stage_in_bytes)),
        ("staged out", size(totals.stage_out_bytes)),
        ("first submitted", moment_text(totals.first_submitted_at) or "-"),
        ("last ended", moment_text(totals.last_ended_at) or "-"),
        ("VOs", _counted(len(tally.vos), sorted(tally.vos))),
        ("users", _users(tally)),
    ]
    remarks = [
        ("in progress, without usage yet", totals.in_progress),
        ("number of cores unknown, counted as one core", totals.cores_unknown),
        ("CPU time not measured by the batch system, and not in these sums", totals.cpu_unknown),
        ("usage not a number, or negative, counted as 0", totals.unreadable),
    ]
    lines = [f"{name:<17}{text}" for name, text in overview if text]
    return lines + [f"{remark}: {jobs:,} of the jobs" for remark, jobs in remarks if jobs]


def _users(tally: JobStatistics) -> str:
    """Return how many certificates, and how many local users without one."""
    if not tally.local_users:
        return f"{len(tally.users):,}"
    local = f"{len(tally.local_users):,} local without a known certificate"
    return f"{len(tally.users):,}, and {local}" if tally.users else local


def _counted(number: int, names: Sequence[str]) -> str:
    text = ", ".join(names)
    return f"{number:,}: {text}" if text else f"{number:,}"


def _gpu_time(totals: Totals, time: Callable[[int], str]) -> str:
    """Return '' where no job had GPUs."""
    if not totals.gpu_jobs:
        return ""
    jobs = f"{totals.gpu_jobs:,} jobs ({100 * totals.gpu_jobs / totals.jobs:.1f} %)"
    return f"{time(totals.gpu_s)} of {jobs}"


def _unit(column: str, *, in_seconds: bool) -> str:
    """Return what the name of a column for people ends with."""
    if column.endswith("_bytes"):
        return " GiB"
    if not column.endswith("_s"):
        return ""
    return " s" if in_seconds else " h"


def _cell(column: str, value: int | str | None, *, in_seconds: bool) -> str:
    """Return a value of `_COLUMNS` for people."""
    if not isinstance(value, int):
        return value or "-"
    if column.endswith("_bytes"):
        return f"{value / 2**30:,.1f}"
    if column.endswith("_s") and not in_seconds:
        return f"{value / 3600:,.1f}"
    return f"{value:,}"


def add_filters(parser: argparse.ArgumentParser) -> None:
    for words, what in (
        (("-b", "--end-from", "--from"), FROM_HELP),
        (("-e", "--end-till", "--to"), TO_HELP),
        (("-s", "--start-from"), "jobs that were submitted at or after this time"),
    ):
        parser.add_argument(*words, metavar="WHEN", help=what)
    for name, what in (
        ("vo", "only jobs of this VO"),
        ("fqan", "only jobs with this main FQAN"),
        ("user", "only jobs of this user (DN, or issuer/subject)"),
        ("state", "only jobs in this state: completed, failed, in-progress"),
        ("queue", "only jobs in this queue"),
        ("endpoint", f"only jobs that came through endpoints of this type, such as {_AN_ENDPOINT}"),
    ):
        option, text = f"--filter-{name}", f"{what}; may be repeated"
        parser.add_argument(option, action="append", default=[], metavar="NAME", help=text)
    text = "with --filter-state: also jobs that are in progress"
    add_flag(parser, "-a", "--show-active", text=text)
    add_flag(parser, "--filter-gpus", text="only jobs that had GPUs")
    parser.add_argument(
        "--filter-extra",
        action="append",
        nargs=2,
        default=[],
        metavar=("KEY", "VALUE"),
        help="only jobs with this attribute: vomsfqan, rte, dtrurl, jobname, projectname, ...; "
        "may be repeated",
    )


def add_database_file(parser: argparse.ArgumentParser) -> None:
    text = "read only this accounting database, a path or a name below accounting/ of control_dir"
    parser.add_argument("--database-file", metavar="FILE", help=text)


def chosen_database(arguments: argparse.Namespace, site: LiveSite) -> LiveSite:
    """The site, with `--database-file` for its databases. Raises: UsageError, ConfigError."""
    if not arguments.database_file:
        return site
    source = site.settings.source
    only = offered(source.type, "only_database", "--database-file")
    alone = source._replace(options=only(source.options, arguments.database_file))
    settings = site.settings._replace(source=alone, batch_entries=(), written=())
    return replace(site, settings=settings)


def job_filter(arguments: argparse.Namespace, site: Site, jobs: JobQueries) -> JobFilter:
    """Return what was asked for, spelled out as it was understood. Raises: UsageError."""
    wanted = _filter(arguments, site)
    statistics.refuse_strange_names(site, jobs, wanted)
    if wanted.ended != Window():
        notice(f"jobs that ended {wanted.ended}")
    if wanted.submitted != Window():
        notice(f"jobs that were submitted {wanted.submitted}")
    return wanted


def has_filters(arguments: argparse.Namespace, site: Site) -> bool:
    """Return whether not every job is wanted. Raises: UsageError."""
    return _filter(arguments, site) != JobFilter()


def _filter(arguments: argparse.Namespace, site: Site) -> JobFilter:
    now = site.process.clock()
    start = None if arguments.end_from is None else when.parse_from(arguments.end_from, now)
    end = None if arguments.end_till is None else when.parse_to(arguments.end_till, now)
    ended = when.window(start, end)
    submitted = None if arguments.start_from is None else when.parse_from(arguments.start_from, now)
    extras: dict[str, set[str]] = {}
    for attribute, value in arguments.filter_extra:
        extras.setdefault(attribute, set()).add(value)
    if arguments.filter_fqan:
        extras.setdefault("mainfqan", set()).update(arguments.filter_fqan)
    active = {"in-progress"} if arguments.show_active and arguments.filter_state else set()
    return JobFilter(
        ended=ended,
        submitted=when.window(submitted, None),
        vos=frozenset(arguments.filter_vo),
        users=frozenset(arguments.filter_user),
        states=frozenset({*arguments.filter_state, *active}),
        queues=frozenset(arguments.filter_queue),
        interfaces=frozenset(arguments.filter_endpoint),
        gpus=arguments.filter_gpus,
        extras={attribute: frozenset(values) for attribute, values in extras.items()},
    )
