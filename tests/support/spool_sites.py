"""Sites that write their messages to files, unsigned, at times that a test chooses."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from publisher import config
from publisher.cli.site import LiveSite
from publisher.publishing.site import ProcessEnvironment
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite


def site_with(folder: Path, pki: PKI, form: str, rules: dict[str, Any], target: dict[str, Any]) -> ConfiguredSite:
    """A site that writes its messages to files, unsigned."""
    folder.mkdir(parents=True)
    spool = {
        "type": "spool",
        "path": str(folder / "outgoing"),
        "sign": False,
        "format": form,
        "start": "all",
        "every": "1s",
    }
    made = ConfiguredSite(folder, pki, pki.host(), {"here": spool | target})
    made.config["records"] |= rules
    if isinstance(rules.get("identity"), dict):
        secret = folder / "secret"
        secret.write_bytes(b"0123456789abcdef")
        secret.chmod(0o600)
        made.config["records"]["identity"] = rules["identity"] | {"secret_file": str(secret)}
    made.save()
    return made


def live_site(site: ConfiguredSite, kind: type[LiveSite], control: Path, now: datetime) -> LiveSite:
    """The site over the databases of a control directory, at a given time: two of them see the same."""
    loaded = config.load(site.path, {}, host_name="ce01.example.org")
    options = replace(loaded.source.options, control_dir=control)  # type: ignore[type-var]  # any source's options
    return kind(
        settings=loaded._replace(source=loaded.source._replace(options=options)),
        process=ProcessEnvironment(
            environment={},
            clock=lambda: now,
            monotonic=time.monotonic,
            wait=threading.Event().wait,
        ),
    )


def messages(site: ConfiguredSite) -> dict[str, bytes]:
    """Whole, by name."""
    return {file.name: file.read_bytes() for file in (site.folder / "outgoing").rglob("*") if file.is_file()}
