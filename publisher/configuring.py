"""The commands about the configuration itself, from arguments to what is told: check, show, from-arc."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import datetime

from publisher import arc_conf, config, terminal
from publisher.charges.rules import told_of_overlaps
from publisher.errors import ConfigError
from publisher.wiring import Site


def check_or_show(arguments: argparse.Namespace, site: Site) -> int:
    settings = site.settings
    if arguments.action == "show":
        sys.stdout.write(config.show(settings))
    else:
        _check_importers(site)
        names = ", ".join(target.name for target in settings.targets)
        terminal.print_line(f"{arguments.config}: good; targets: {names}", sys.stdout)
        for said in _overlaps(site):
            terminal.print_line(f"note: {said}", sys.stdout)
    return 0


def _check_importers(site: Site) -> None:
    """That importers could start: their map files can be read. Raises: ConfigError with all that is wrong."""
    problems: list[str] = []
    for name in site.settings.importers:
        try:
            site.importer(name)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def _overlaps(site: Site) -> list[str]:
    """Rules of charges that meet, each pair once though targets have them too."""
    settings = site.settings
    records = [settings.records, *(target.records for target in settings.targets)]
    return list(dict.fromkeys(said for each in records for said in told_of_overlaps(each.charges)))


def from_arc(arguments: argparse.Namespace, environment: Mapping[str, str], now: datetime) -> int:
    page = arc_conf.convert(
        arguments.arc_conf,
        state=arguments.state,
        site=arguments.site,
        now=now,
        environment=environment,
    )
    if arguments.look_for_lost:
        for line in arc_conf.lost_jobs(page, environment=environment):
            terminal.print_line(line, sys.stdout)
        return 0
    sys.stdout.write(page.text)
    if page.missing:
        terminal.error_line(
            f"{arguments.arc_conf}: not enough for a configuration, {', '.join(page.missing)} must be filled in; "
            "the list at the end says why"
        )
        return ConfigError.exit_status
    if page.by_hand:
        terminal.error_line(f"what needs a hand stands at the end ({len(page.by_hand)})")
    return 0
