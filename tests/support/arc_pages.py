"""Pages made of an arc.conf, for the tests of taking over from ARC."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from publisher.config import Settings, load
from publisher.config.from_arc import ConfigurationText, make_page, parse_arc_conf
from publisher.config.from_arc.publishing_state import ArcProgress
from publisher.config.from_arc.targets import Takeover
from publisher.model.job import Epoch

SAMPLES = Path(__file__).parent / "arc_conf"
NAMES = sorted(path.name for path in SAMPLES.glob("*.conf"))
NOW = datetime(2026, 10, 20, 12, 0, tzinfo=UTC)
LAST = datetime(2026, 10, 12, 3, 4, 5, tzinfo=UTC)
NOTHING = Takeover(stopped=None, where="/srv/publishing.db", now=NOW)


def page_of(text: str, takeover: Takeover = NOTHING, *, site: str = "") -> ConfigurationText:
    return make_page(parse_arc_conf(text.encode("utf-8", "surrogateescape"), "arc.conf"), takeover, site=site)


def sample(name: str, takeover: Takeover = NOTHING, *, site: str = "") -> ConfigurationText:
    return make_page(parse_arc_conf((SAMPLES / name).read_bytes(), name), takeover, site=site)


def loaded(page: ConfigurationText, folder: Path) -> Settings:
    path = folder / "publisher.yaml"
    path.write_text(page.text, encoding="utf-8")
    return load(path, {}, host_name="ce.example.org")


def keys(page: ConfigurationText) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(page.text)
    return tree


def stopped(targets: dict[str, tuple[int, int]]) -> Takeover:
    rows = {
        name: ArcProgress(last_end=Epoch(end) if end else None, last_report=Epoch(report) if report else None)
        for name, (end, report) in targets.items()
    }
    return Takeover(stopped=rows, where="publishing.db", now=NOW)


APEL = "[common]\n[arex]\n[arex/jura]\n{jura}\n[arex/jura/apel:egi]\ntargeturl=https://msg.example.org\ngocdb_name=SITE\n{target}\n"


def apel(target: str = "", jura: str = "", takeover: Takeover = NOTHING) -> ConfigurationText:
    return page_of(APEL.format(target=target, jura=jura), takeover)
