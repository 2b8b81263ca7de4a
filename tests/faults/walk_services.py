"""The other side of the random walk: three targets at two stand-ins, what befalls their requests, who may do what."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tests.fake_ams.faults import Act, Fault
from tests.fake_ams.service import FakeAMS
from tests.fake_sgas import FakeSGAS
from tests.faults.walk_arex import ComputingElement
from tests.faults.walk_faults import AMS, AUTHN, PROXY, SGAS, Misfortune
from tests.faults.web_proxy import WebProxy
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

SUMS_TOPIC: Final = "sums"
TARGETS: Final = ("egi", "sums", "nordic")
AMS_LIMIT: Final = {"old": 1_000_000, "new": 1_500_000}
SGAS_LIMIT: Final = 2_097_152
_PASSWORD: Final = "0pen-se5ame-0f-the-pr0xy"
_PSEUDONYMS: Final = "5ecret-0f-the-pseud0nyms-32-bytes-l0ng"
_DRIP_S: Final = 200.0  # a drip outlasts every limit at once: the clock that the transport is handed leaps


class _Log(logging.Handler):
    """Everything that was logged, at every level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class ServicesAndSite(ComputingElement):
    """A computing element in a configured site, with the services that it sends to."""

    def __init__(self, folder: Path, pki: PKI, seed: int) -> None:
        self._open = ExitStack()
        self.fake = self._open.enter_context(FakeAMS(pki, profile="old" if seed % 2 else "new"))
        self.sgas = self._open.enter_context(
            FakeSGAS(pki, generation="H" if seed % 4 < 2 else "R", twisted="old" if seed % 3 else "new")
        )
        self.proxy = self._open.enter_context(WebProxy(_PASSWORD, self.met_so_far))
        host = pki.host(key="ec", days=1000, not_before=datetime.now(UTC) - timedelta(days=2))
        self.site = SiteUnderTest(folder, pki, self.fake, host=host)
        super().__init__(self.site.database(), seed)
        if seed % 2:
            secret_file = folder / "pseudonym.secret"
            secret_file.touch(mode=0o600)
            secret_file.write_text(_PSEUDONYMS)
            self.site.config["records"]["identity"] = {"mode": "pseudonym", "secret_file": str(secret_file)}
        self.fake.allow(self.site.user, SUMS_TOPIC)
        self._dn = self.sgas.allow(host)
        egi = self.site.config["targets"]["egi"] | {"read_timeout_s": 30}
        nordic = {"type": "sgas", "url": self.sgas.url, "format": "ogf-ur", "read_timeout_s": 30}
        self._blocks: dict[str, dict[str, Any]] = {
            "egi": egi,
            "sums": egi | {"format": "apel-summary-0.4", "topic": SUMS_TOPIC},
            "nordic": nordic | {"start": "all", "every": "1s"},
        }
        self._log = _Log()
        logger = logging.getLogger("publisher")
        logger.addHandler(self._log)
        self._open.callback(logger.setLevel, logger.level)
        self._open.callback(logger.removeHandler, self._log)
        logger.setLevel(logging.DEBUG)
        self.secrets: set[str] = {_PASSWORD, self.proxy.spelt, _PSEUDONYMS}
        self.told: list[str] = []  # what people and journals get to read: reasons, errors
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self._made: list[tuple[Fault, Misfortune]] = []
        self._drips: list[Fault] = []
        self._shift = timedelta(0)
        self._skipped_s = 0.0
        self._acl, self._bound, self._right = True, True, True
        self._note_secrets()
        self._configure(list(TARGETS))

    def close(self) -> None:
        self.writer.close()
        self._open.close()

    @property
    def logged(self) -> str:
        return "\n".join(self._log.lines)

    def rotate_token(self) -> None:
        self.fake.rotate_token(self.site.user)
        self._note_secrets()

    def drop_connections(self) -> None:
        self.fake.drop_connections()
        self.sgas.drop_connections()

    def change_rights(self) -> None:
        match self.chance.choice(("acl", "binding", "sgas", "all", "all")):
            case "acl":
                self._set_rights(acl=False)
            case "binding":
                self._set_rights(bound=False)
            case "sgas":
                self._set_rights(right=False)
            case _:
                self._set_rights()

    def change_limits(self) -> None:
        old = self.fake.policy.profile == "old"
        self.fake.set_limit(
            self.chance.choice(
                (3_000, 30_000, 120_000, AMS_LIMIT[self.fake.policy.profile])
                if old
                else (700_000, AMS_LIMIT[self.fake.policy.profile])
            )
        )
        self.sgas.set_limit(self.chance.choice((4_000, 30_000, SGAS_LIMIT, SGAS_LIMIT)))

    def move_the_clock(self) -> None:
        self._shift = self.chance.choice(
            (timedelta(0), timedelta(0), timedelta(hours=-1), timedelta(days=1), timedelta(days=366))
        )

    def configure(self) -> None:
        self._configure([name for name in TARGETS if self.chance.random() < 0.7] or ["egi"])

    def met_so_far(self) -> tuple[int, int]:
        """How much AMS and SGAS have met."""
        return len(self.fake.faults.met), len(self.sgas.faults.met)

    def _monotonic(self) -> float:
        """Leaps ahead with each drip that is met."""
        waiting = [fault for fault in self._drips if fault in self._met_now()]
        for fault in waiting:
            self._drips.remove(fault)
            self._skipped_s += _DRIP_S
        return time.monotonic() + self._skipped_s

    def _met_now(self) -> list[Fault]:
        """The faults that requests met since they were queued."""
        met = [fault for _, _, fault in self.fake.faults.met] + [fault for _, fault in self.sgas.faults.met]
        return [made for made, _ in self._made if any(made is fault for fault in met)]

    def _no_more_faults(self) -> None:
        self.fake.faults.clear()
        self.sgas.faults.clear()
        self.proxy.clear()

    def _queue_faults(self) -> None:
        self._no_more_faults()
        self._made = []
        self._drips = []
        for _ in range(self.chance.choice((0, 0, 1, 2, 4))):
            chosen = self.chance.choice(AMS)
            self.fake.faults.push(self._make(chosen), route=chosen.route)
        if self.chance.random() < 0.2:
            chosen = self.chance.choice(AUTHN)
            self.fake.faults.push(self._make(chosen), service="authn", route=chosen.route)
        for _ in range(self.chance.choice((0, 0, 1, 2, 4))):
            chosen = self.chance.choice(SGAS)
            self.sgas.faults.push(self._make(chosen), route=chosen.route)
        if self.chance.random() < 0.2:
            self.proxy.push(self._make(self.chance.choice(PROXY)))

    def _make(self, chosen: Misfortune) -> Fault:
        fault = chosen.make()
        self._made.append((fault, chosen))
        if fault.act is Act.DRIP:
            self._drips.append(fault)
        self.story.append(f"({chosen.name})")
        return fault

    def _configure(self, targets: list[str], *, batch_records: int = 0) -> None:
        blocks = {}
        for name in targets:
            blocks[name] = self._blocks[name] | {
                "batch_records": batch_records or self.chance.choice((1, 2, 5, 20, 50, 500)),
                "attempts": self.chance.choice((1, 1, 2, 3)),
            }
            blocks[name]["batch_bytes"] = self.chance.choice((60_000, 900_000))
            if self.chance.random() < 0.3:
                blocks[name]["proxy"] = self.proxy.url
        self.site.config["targets"] = blocks
        self.site.config["source"]["page_rows"] = self.chance.choice((5, 50, 1000))
        self.site.save()

    def _set_rights(self, *, acl: bool = True, bound: bool = True, right: bool = True) -> None:
        user = self.site.user
        if acl != self._acl:
            for topic in ("gLite-APEL", SUMS_TOPIC):
                (self.fake.allow if acl else self.fake.remove_acl)(user, topic)
        if bound != self._bound:
            if bound:
                self.fake.bind(self.site.host, user, topics=())
            else:
                self.fake.unbind(self.site.host)
        if right != self._right:
            if right:
                self.sgas.allow(self._dn)
            else:
                del self.sgas.authz.lines[self._dn]
        self._acl, self._bound, self._right = acl, bound, right

    def _note_secrets(self) -> None:
        self.secrets.add(self.fake.token(self.site.user))
