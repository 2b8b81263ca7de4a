"""The importers: what each of them needs besides the files that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from publisher.doctor.findings import Finding, Question
from publisher.model.errors import ConfigError, SourceError
from publisher.pipeline.site import Site
from publisher.sources.importing.arc_jobs import check_arc_database


def check_importers(site: Site) -> Iterator[Finding]:
    for name in site.importers:
        yield _maps(site, name)
        yield from _arc_databases(site, name)


def _maps(site: Site, name: str) -> Finding:
    question = Question("map files", name, "without them nothing is imported")
    try:
        site.importer(name)
    except ConfigError as error:
        return question.error(error, f"see importers.{name} in publisher.yaml(5)")
    return question.ok("all that are named can be read")


def _arc_databases(site: Site, name: str) -> Iterator[Finding]:
    options: Any = site.importers[name]
    question = Question(
        "arc_databases", name, "without them nothing is imported, because jobs of the CEs would count twice"
    )
    for path in options.arc_databases:
        try:
            check_arc_database(path)
        except SourceError as error:
            yield question.error(error, f"see importers.{name}.arc_databases in publisher.yaml(5)")
        else:
            yield question.ok(str(path))
