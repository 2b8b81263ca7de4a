"""The soak's daemon: `publisher run` beside the publishers, given another configuration now and then, or ended."""

from __future__ import annotations

import copy
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Final

import yaml

from tests.support.patience import PATIENCE_S
from tests.support.sites import SiteUnderTest

_RUN: Final = "from publisher.cli.main import main; main()"
_EVENTS: Final = {"nothing": 40, "reload": 35, "mistake": 10, "SIGKILL": 8, "SIGTERM": 7}


class SoakDaemon:
    """One daemon after the other, each with a log of its own and the same state as all publishers."""

    def __init__(self, site: SiteUnderTest, chance: random.Random) -> None:
        self._site, self._chance = site, chance
        self._path = site.folder / "daemon.yaml"
        self.counts: Counter[str] = Counter()
        self.strange: list[str] = []
        self.slowest_end_s = 0.0
        self._start()

    def look(self) -> None:
        """Whether it lives; then perhaps another configuration, or an end. Not while it starts, or has not answered yet."""
        if self._child.poll() is not None:
            self.strange.append(f"the daemon ended by itself with {self._child.returncode}: {self._said()[-500:]}")
            self._start()
        elif self._is_heard():
            match self._chance.choices(list(_EVENTS), weights=list(_EVENTS.values()))[0]:
                case "reload":
                    self._reload()
                case "mistake":
                    self._reload(mistake=True)
                case "SIGKILL":
                    self.counts["SIGKILL"] += 1
                    self.kill()
                    self._start()
                case "SIGTERM":
                    self.counts["SIGTERM"] += 1
                    self._end()
                    self._start()

    def finish(self) -> None:
        """One more reload, whatever befell before, and the end."""
        self._wait_until_heard()
        self._reload()
        self._wait_until_heard()
        self._end()

    def kill(self) -> None:
        """End it for good, if it has not ended."""
        self._child.kill()
        self._child.wait(PATIENCE_S)
        self._log.unlink(missing_ok=True)

    def _start(self) -> None:
        self.counts["started"] += 1
        self._asked = 0
        self._configure(mistake=False)
        self._log = self._site.folder / f"daemon-{self.counts['started']}.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-c", _RUN, "--config", str(self._path), "run"]
            self._child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def _configure(self, *, mistake: bool) -> None:
        """Other batches, other pages, and not always all targets."""
        settings = copy.deepcopy(self._site.config)
        settings["source"]["page_rows"] = self._chance.choice((50, 500))
        names = [name for name in settings["targets"] if self._chance.random() < 0.7] or ["egi"]
        settings["targets"] = {
            name: settings["targets"][name] | {"every": "2s", "batch_records": self._chance.choice((20, 50, 100))}
            for name in names
        }
        text = yaml.safe_dump(settings, sort_keys=False)
        self._path.write_text(text.replace("every:", "evry:", 1) if mistake else text)

    def _reload(self, *, mistake: bool = False) -> None:
        self.counts["mistakes refused" if mistake else "reloads"] += 1
        self._asked += 1
        self._configure(mistake=mistake)
        self._child.send_signal(signal.SIGHUP)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def _is_heard(self) -> bool:
        """It is ready, and has answered every SIGHUP: a configuration was taken over, or not."""
        said = self._said()
        return "ready: " in said and said.count("reloaded: ") == self._asked

    def _wait_until_heard(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self._is_heard():
            assert self._child.poll() is None, self._said()
            assert time.monotonic() < end, self._said()
            time.sleep(0.05)

    def _end(self) -> None:
        asked = time.monotonic()
        self._child.send_signal(signal.SIGTERM)
        status = self._child.wait(PATIENCE_S)
        self.slowest_end_s = max(self.slowest_end_s, time.monotonic() - asked)
        if status or "Traceback" in self._said():
            self.strange.append(f"the daemon ended with {status} after SIGTERM: {self._said()[-500:]}")
        self.kill()
