"""Everything that can happen to a site: at its CEs, in its rounds, by its administrators, at its receivers."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from publisher.publishing.plan.decision import CLOSED_MONTHS
from tests.arex_databases import SampleJob, Schema
from tests.model_receivers.ledgers import StoredLedger
from tests.model_receivers.oracle import (
    SINGLE,
    Memory,
    closed_at,
    differences,
    holdings,
    note_waiting,
    surfaces,
    ticket_records,
    ticket_rows,
)
from tests.model_receivers.receivers.apel import Apel, month_of
from tests.model_receivers.site import Product, Run, place_of, scripted
from tests.model_receivers.world import USERS, VOS, BatchSystem, Ce, ended_again, job_of, user_name

_DAY_S: Final = 86_400
_SUMS: Final = ("apel-summary-0.2", "apel-summary-0.3", "apel-summary-0.4", "apel-normalised-summary-0.4")
_PUBLISH: Final = ("publish", "--force", "--json")
_ENDED_WELL: Final = (0, 65, 75, 76)
STOPPED: Final = 78


class World:
    """A site of two CEs, its receivers, and the memory of what was."""

    def __init__(self, folder: Path, seed: int, ledger: StoredLedger, *, gentle: bool = False) -> None:
        chance = random.Random(seed)
        self.gentle = gentle
        schemas: dict[str, Schema] = {"ce1": 2, "ce2": 1} if chance.random() < 0.5 else {"ce1": 1}
        if not gentle:
            schemas = {"ce1": 2, "ce2": chance.choice((1, 2))}
        self.ces = [Ce(folder, name, schema) for name, schema in schemas.items()]
        self.batch = BatchSystem(folder) if chance.random() < (0.1 if gentle else 0.25) else None
        form = chance.choice(("car", "apel-job-0.3", "apel-job-0.4", *_SUMS, "apel-summary-0.4", "apel-summary-0.4"))
        config = _config(ledger, self._sources(), form, chance, split=not gentle)
        self.product = Product(folder, config, ledger)
        self.memory = Memory()
        self.number = 0
        self.backup_there = False
        self.retired: list[str] = []
        self.calm = False
        self.closed: dict[str, tuple[int, int]] = {}

    def _sources(self) -> list[Ce | BatchSystem]:
        return [*self.ces, *([] if self.batch is None else [self.batch])]

    @property
    def now(self) -> int:
        return int(self.product.now.timestamp())

    @property
    def config(self) -> dict[str, Any]:
        return self.product.config

    # What happens at CEs

    def submit(self, chance: random.Random) -> None:
        ce = chance.choice(self.ces)
        jobs = [self._job(ce.name, chance) for _ in range(chance.randint(1, 4))]
        if self.batch is not None:
            jobs = [replace(job, lrms="sge", cpus=1) for job in jobs]
            for job in jobs:
                self.batch.finish(job, of_ce=True)
            self.batch.finish(replace(self._job(self.batch.name, chance), cpus=1))
        ce.insert(jobs)

    def _job(self, ce: str, chance: random.Random) -> SampleJob:
        self.number += 1
        days = 60 if chance.random() < 0.3 else 2  # some rows come late
        end, local_id = self.now - chance.randrange(3600, days * _DAY_S), ""
        if chance.random() < 0.04 and not (self.gentle or self.batch) and (others := self._rows()):
            _, other = chance.choice(others)
            end, local_id = other.end_time, str(other.local_job_id)
        return job_of(
            number=self.number,
            ce=ce,
            end=end,
            wall_s=chance.randrange(1, 90_000),
            cpu_s=chance.randrange(1, 90_000),
            user=chance.choice(list(USERS)),
            cpus=chance.choice((1, 1, 8)),
            local_id=local_id,
            benchmark=chance.choice((None, None, "HEPSPEC:10.5")),
        )

    def _rows(self) -> list[tuple[Ce, SampleJob]]:
        return [(ce, job) for ce in self.ces for job in ce.rows.values() if not self.gentle or self._is_delivered(job)]

    def _is_delivered(self, job: SampleJob) -> bool:
        """Whether the last round left nothing of this job to do: what is gone by now had its time."""
        versions = self.memory.runs.get((job.job_id, str(job.local_job_id)), [])
        return bool(versions) and versions[-1].sure and versions[-1].job == job and self.settled

    settled = False
    last = Run(0, "")

    def _again(self, chance: random.Random, changed: Callable[[SampleJob], SampleJob]) -> None:
        if rows := self._rows():
            ce, job = chance.choice(rows)
            again = changed(job)
            ce.again(again)
            if self.batch is not None and again.local_job_id != job.local_job_id:
                self.batch.finish(again, of_ce=True)

    def restart(self, chance: random.Random) -> None:
        """A job runs again under another local id."""
        self.number += 1
        wall_s = chance.randrange(1, 90_000)
        new = {"local_job_id": str(1000 + self.number), "wall_s": wall_s, "cpu_user_s": chance.randrange(1, 90_000)}
        self._again(chance, lambda job: ended_again(job, self._end_after(job, chance), **new))

    def _end_after(self, job: SampleJob, chance: random.Random) -> int:
        return max(job.end_time + 1, self.now - chance.randrange(60, 3 * _DAY_S))

    def resume(self, chance: random.Random) -> None:
        """A job goes on under its local id, and ends later."""
        more = chance.choice((0, 100))
        self._again(chance, lambda job: ended_again(job, self._end_after(job, chance), wall_s=job.wall_s + more))

    def end_in_next_month(self, chance: random.Random) -> None:
        """A job that ended in an earlier month ends again now, under its local id."""
        old = [one for one in self._rows() if month_of(one[1].end_time) < month_of(self.now)]
        if old:
            ce, job = chance.choice(old)
            ce.again(ended_again(job, self.now - 60))

    def correct(self, chance: random.Random) -> None:
        self._correct(chance, wall_s=chance.randrange(1, 90_000), cpu_user_s=chance.randrange(1, 90_000))

    def other_cores(self, chance: random.Random) -> None:
        self._correct(chance, cpus=chance.choice((1, 2, 8)))

    def _correct(self, chance: random.Random, **values: int) -> None:
        if rows := self._rows():
            ce, job = chance.choice(rows)
            ce.correct(replace(job, **values))  # type: ignore[arg-type]  # columns of one kind

    def purge(self, chance: random.Random) -> None:
        gone = [one for one in self._rows() if chance.random() < 0.4]
        for ce in self.ces:
            ce.purge([job.job_id for where, job in gone if where is ce])

    def renumber(self, chance: random.Random) -> None:
        chance.choice(self.ces).renumber(chance)

    def insert_anew(self, chance: random.Random) -> None:
        """A row is deleted, and the same job is written again."""
        if rows := self._rows():
            ce, job = chance.choice(rows)
            ce.purge([job.job_id])
            ce.insert([job])

    def migrate(self, chance: random.Random) -> None:
        self.ces[-1].migrate()

    def wait(self, chance: random.Random) -> None:
        self.product.later(hours=chance.randrange(5, 100))

    def wait_a_month(self, chance: random.Random) -> None:
        self.product.later(days=chance.randrange(20, 40))

    # Rounds

    def command(self, chance: random.Random, *words: str, trouble: float = 0.0) -> Run:
        """Run a command that looks at jobs, and remember what it could see."""
        self.product.answer = scripted(chance.randrange(2**30), trouble=trouble)
        self.product.later(minutes=10)
        run = self.product.run(*words)
        if run.status == STOPPED:
            self.say_which_receiver(chance)
            run = self.product.run(*words)
        assert run.status not in (64, STOPPED), run.err  # a mistake of this test
        self.last = run
        whole = words[0] == "publish"
        note_waiting(self.memory, self.config["targets"], run)
        self.look(sure=whole and run.status in _ENDED_WELL)
        if whole:
            self.settled = run.status == 0 and not trouble
        return run

    def look(self, *, sure: bool) -> None:
        rows = [job for ce in self.ces for job in ce.rows.values()]
        if self.batch is not None:
            rows += self.batch.local
            self.memory.batch_runs = list(self.batch.of_ces)
        self.memory.look(rows, self.config, sure=sure, closed=self.closed)
        self.closed = closed_at(self.product)  # what is closed by now, the next round finds so

    def publish(self, chance: random.Random) -> None:
        self.command(chance, *_PUBLISH)

    def publish_in_trouble(self, chance: random.Random) -> None:
        self.command(chance, *_PUBLISH, trouble=chance.choice((0.3, 1.0)))

    def killed(self, chance: random.Random) -> None:
        self._cut_short(chance, *_PUBLISH)

    def _cut_short(self, chance: random.Random, *words: str) -> None:
        kills = chance.random() < 0.5
        self.product.answer = scripted(chance.randrange(2**30), trouble=0.6 if kills else 0.0, kills=kills)
        self.product.later(minutes=10)
        self.product.cut_short(*words, statement=chance.choice((chance.randrange(1, 60), chance.randrange(1, 400))))
        self.look(sure=False)
        self.settled = False

    def disk_full(self, chance: random.Random) -> None:
        self.product.later(minutes=10)
        self.product.answer = scripted(0, trouble=0.0)
        self.product.cut_short(*_PUBLISH, most_bytes=chance.choice((4096, 33_000, chance.randrange(1, 300_000))))
        self.look(sure=False)
        self.settled = False

    # Administrators: what records say

    def benchmark(self, chance: random.Random) -> None:
        value = chance.choice((10, 11.5, 12))
        self.config["records"]["benchmark"] = {"type": "HEPscore23", "value": value, "override": chance.random() < 0.5}

    def vo_rule(self, chance: random.Random) -> None:
        records = self.config["records"]
        if records.get("vo_rules") and chance.random() < 0.6:
            del records["vo_rules"]
        else:
            user = user_name(chance.choice(list(USERS)))
            records["vo_rules"] = [{"field": "user", "pattern": user, "vo": chance.choice(VOS), "override": True}]

    def site_name(self, chance: random.Random) -> None:
        self.config["site"] = chance.choice(("EXAMPLE-SITE", "OTHER-SITE"))

    def prefix(self, chance: random.Random) -> None:
        if self.config["records"].pop("localid_prefix", None) is None:
            self.config["records"]["localid_prefix"] = chance.choice(("a-", "b-"))

    def identity(self, chance: random.Random) -> None:
        secret = self.product.folder / "secret"
        secret.write_text("0123456789abcdef")
        secret.chmod(0o600)
        pseudonym = {"mode": "pseudonym", "secret_file": str(secret)}
        self.config["records"]["identity"] = chance.choice(("plain", "withheld", pseudonym))

    # Administrators: targets

    def _target(self, chance: random.Random, kind: str = "ams") -> str | None:
        names = [name for name, one in self.config["targets"].items() if one["type"] == kind]
        return chance.choice(names) if names else None

    def move_vo(self, chance: random.Random) -> None:
        """A VO moves from the target that has it to another one of the same service."""
        vo = chance.choice(VOS)
        ams = {name: one for name, one in self.config["targets"].items() if one["type"] == "ams"}
        (has,) = (name for name, one in ams.items() if vo in one["vos"])
        others = [name for name in ams if name != has]
        if others and len(ams[has]["vos"]) > 1:
            heir = ams[chance.choice(others)]
            heir["vos"] = sorted([*heir["vos"], vo])
            ams[has]["vos"].remove(vo)

    def add_target(self, chance: random.Random) -> None:
        """The VOs of a target are split over two."""
        name = self._target(chance)
        if name and len(self.config["targets"][name]["vos"]) > 1:
            self.number += 1
            old = self.config["targets"][name]
            self.config["targets"][f"more{self.number}"] = {**old, "vos": old["vos"][:1]}
            old["vos"] = old["vos"][1:]

    def rename_target(self, chance: random.Random) -> None:
        if name := self._target(chance):
            self.number += 1
            self.config["targets"][f"named{self.number}"] = self.config["targets"].pop(name)

    def remove_target(self, chance: random.Random) -> None:
        """A target goes; its VOs go to another of the same service, if there is one."""
        ams = [name for name, one in self.config["targets"].items() if one["type"] == "ams"]
        if len(ams) > 1:
            gone = self.config["targets"].pop(ams.pop(chance.randrange(len(ams))))
            heir = self.config["targets"][chance.choice(ams)]
            heir["vos"] = sorted({*heir["vos"], *gone["vos"]})

    def other_format(self, chance: random.Random) -> None:
        form = chance.choice((*SINGLE[:2], *_SUMS[1:3]))
        for one in self.config["targets"].values():
            if one["type"] == "ams":
                one["format"] = form

    def other_topic(self, chance: random.Random) -> None:
        topic = chance.choice(("gLite-APEL", "other"))
        for one in self.config["targets"].values():
            if one["type"] == "ams":
                one["topic"] = topic

    def say_which_receiver(self, chance: random.Random) -> None:
        """Answer what targets ask whose address no receiver has; until then nothing goes there."""
        while asked := asking(self.product):
            name, old = next(iter(asked.items()))
            arrived, there = len(self.product.arrived), place_of(self.config["targets"][name])
            stopped = self.product.run(*_PUBLISH, "--target", name)
            assert stopped.status == STOPPED, stopped.err
            assert len(self.product.arrived) == arrived
            is_same = chance.random() < 0.5
            if is_same and there in self.product.models:
                is_same = old not in self.product.models  # it moved, and the ledger is from before that
            elif is_same:
                self.product.move_model(old, there)
                self.memory.move(old, there)
            answer = self.product.run("receiver", "same" if is_same else "new", name)
            assert answer.status == 0, answer.err

    # Administrators: repairs

    def _window(self, chance: random.Random) -> list[str]:
        months = sorted({month_of(one.job.end_time) for seen in self.memory.runs.values() for one in seen}) or [
            (2026, 6)
        ]
        open_since = max(closed_at(self.product).values(), default=months[0])
        months = [month for month in months if month >= open_since] or [month_of(self.now)]
        first = chance.choice(months)
        last = chance.choice((first, months[-1]))
        return ["--from", f"{first[0]}-{first[1]:02}", "--to", f"{last[0]}-{last[1]:02}", "--yes", "--no-brake"]

    def republish(self, chance: random.Random) -> None:
        self.command(chance, "republish", *self._window(chance), trouble=chance.choice((0.0, 0.0, 0.3)))

    def republish_accepting(self, chance: random.Random) -> None:
        """Republish with consent, and have deleted what its tickets name: those of totals before or after that."""
        self._accepting(chance, "republish", *self._window(chance))

    def accept(self, chance: random.Random) -> None:
        """The same for what rounds hold."""
        self._accepting(chance, *_PUBLISH[:2])

    def _accepting(self, chance: random.Random, *words: str) -> None:
        asked = self.command(chance, *words)
        first = chance.random() < 0.5
        if first:
            delete_what_tickets_say(self.product, asked)
        told = self.command(chance, *words, "--accept-key-change")
        delete_what_tickets_say(self.product, *([] if first else [asked]), told)

    def ticket(self, chance: random.Random) -> None:
        """Have the rows deleted that are named as left at the receiver."""
        delete_what_tickets_say(self.product, self.product.run("sync", "--check", "--months", "all"))
        self.look(sure=False)

    def keep(self, chance: random.Random) -> None:
        """More than a year goes by, and old months are closed, which may be cut short."""
        self.product.later(days=chance.choice((410, 440, 470)))
        self.config["keep"] = "13 months"
        if chance.random() < 0.3:
            self._cut_short(chance, *_PUBLISH)
        self.command(chance, *_PUBLISH)

    def killed_republish(self, chance: random.Random) -> None:
        self._cut_short(chance, "republish", *self._window(chance), "--json")

    def release(self, chance: random.Random) -> None:
        self._release(lambda one: one["rule"] != CLOSED_MONTHS)  # nobody looked whether the receiver has them

    def _release(self, which: Callable[[dict[str, Any]], bool]) -> bool:
        """Release those of the quarantine; return whether there was one."""
        listed = self.product.run("quarantine", "list", "--json").json["quarantined"]
        if numbers := [str(one["number"]) for one in listed if which(one)]:
            self.product.run("quarantine", "release", *numbers)
        return bool(numbers)

    def drop(self, chance: random.Random) -> None:
        listed = self.product.run("quarantine", "list", "--json").json["quarantined"]
        if listed:
            self.product.run("quarantine", "drop", str(chance.choice(listed)["number"]))

    def retire(self, chance: random.Random) -> None:
        """The second CE is gone for good."""
        if len(self.ces) > 1 and self.settled:
            gone = self.ces.pop()
            self.memory.forgotten |= {run for run in self.memory.runs if run[0].endswith(gone.name)}
            self.config["source"] = [one.source for one in self._sources()]
            files = sorted(gone.accounting.glob("*.db"))
            shutil.rmtree(gone.control)
            for path in files:
                self.retired.append(str(path))
            self._retire_again()

    def _retire_again(self) -> None:
        """Also for a ledger that was restored, which does not know it."""
        for path in self.retired:
            retired = self.product.run("source", "retire", path)
            assert retired.status == (0 if "was never read" not in retired.err else 64), retired.err

    # Receivers

    def _apels(self) -> list[Apel]:
        return [model for model in self.product.models.values() if isinstance(model, Apel)]

    def summarise(self, chance: random.Random) -> None:
        for model in self._apels():
            model.summarise()

    def forget_records(self, chance: random.Random) -> None:
        """APEL purges its job records of months before the last three."""
        year, month = month_of(self.now - 60 * _DAY_S)
        for model in self._apels():
            model.summarise()
            model.purge((year, month))

    # The ledger

    def backup(self, chance: random.Random) -> None:
        self.backup_there = self.product.ledger.back_up(self.product.run)

    def restore(self, chance: random.Random) -> None:
        """The backup takes the ledger's place; the administrator answers at once, later, or never."""
        if self.backup_there:
            self.product.ledger.restore()
            led_to = {place_of(target) for target in self.config["targets"].values()}
            self.memory.unasked |= self.product.models.keys() - led_to
            self._found_out(chance)

    def lose_ledger(self, chance: random.Random) -> None:
        if self.product.ledger.exists():
            self.product.ledger.lose()
            self._found_out(chance)

    def _found_out(self, chance: random.Random) -> None:
        self._retire_again()
        self.command(chance, *_PUBLISH)
        if chance.random() < 0.7:
            answer_restored(self.product, self.last, chance)

    # The job store

    def lose_store(self, chance: random.Random) -> None:
        """Somebody deletes the job store: it is a cache."""
        self.product.lose_store()
        self.memory.store_is_lost = True

    def old_store(self, chance: random.Random) -> None:
        """The job store is put back from a backup, or one is made of it."""
        store = self.product.job_store
        backup = store.with_name("jobs.backup")
        if backup.exists():
            self.product.lose_store()
            backup.rename(store)
            self.memory.store_is_lost = True
        elif store.exists():
            shutil.copyfile(store, backup)

    def answer(self, chance: random.Random) -> None:
        """The administrator answers what rounds hold since the ledger was restored."""
        answer_restored(self.product, self.command(chance, *_PUBLISH), chance)

    # The end

    def end(self) -> list[str]:
        """All is well: let rounds go by, and return what is wrong then."""
        calm = random.Random(0)
        self.command(calm, *_PUBLISH)
        self.product.later(hours=26)
        if self._release(lambda one: one["rule"] == "refused-by-receiver"):
            self.command(calm, *_PUBLISH)
        last = self.command(calm, *_PUBLISH)
        if "run `publisher publish --accept-state`" in last.out + last.err:  # the receiver moved since the backup
            last = self.command(calm, *_PUBLISH, "--accept-state")
        found = differences(self.product, self.memory, surfaces(self.product, last))
        if self.number % 4 == 0 and self.product.run("state", "check").status:
            found.append("state check finds damage")
        return found


def asking(product: Product) -> dict[str, str]:
    """Return the targets that ask which receiver is at their address, with the place where they led before."""
    targets = product.run("status", "--json").json["targets"]
    asked = {
        name: re.search(r"at \S+, project \S+, topic (\S+) \(receiver", one["question"] or "")
        for name, one in targets.items()
    }
    return {name: f"apel {found[1]}" for name, found in asked.items() if found}


def answer_restored(product: Product, last: Run, chance: random.Random, *, how: str = "") -> dict[str, list[Run]]:
    """Solve the months that a round holds since the ledger was restored; return what commands said, by receiver."""
    places: dict[str, tuple[str, set[str]]] = {}
    for target, outcome in last.json.get("targets", {}).items():
        place = place_of(product.config["targets"][target])
        months = {one["month"] for one in outcome["held"] if (one["restored"] or {}).get("differs")}
        places[place] = target, places.get(place, ("", set()))[1] | months
    said: dict[str, list[Run]] = {}
    for place, (target, months) in places.items():
        for month in sorted(months):
            answer = how or chance.choice(("delivered", "deleted"))
            if answer == "delivered":
                run = product.run("receiver", "delivered", target, month, "--json")
                (found,) = run.json["months"]
                if found["before"] is None and not found["is_taken"]:  # then the portal decides
                    is_shown = found["counted"] == _jobs_at(product, place, month) and product.says_what_it_said
                    anyway = "receiver", "delivered", target, month, "--json", "--anyway"
                    run = product.run(*anyway) if is_shown else _delete(product, place, target, month)
            else:
                run = _delete(product, place, target, month)
            said.setdefault(place, []).append(run)
    return said


def _delete(product: Product, place: str, target: str, month: str) -> Run:
    product.model(place).delete_month(_numbers(month))
    return product.run("receiver", "deleted", target, month, "--json")


def _jobs_at(product: Product, place: str, month: str) -> int:
    """Return how many jobs of a month the portal of a receiver shows."""
    found = holdings(deepcopy(product.model(place)), place)
    return sum(total.jobs for group, total in found.items() if group.month == _numbers(month))


def _numbers(month: str) -> tuple[int, int]:
    year, _, number = month.partition("-")
    return int(year), int(number)


def delete_what_tickets_say(product: Product, *runs: Run) -> None:
    """Have the receivers' team carry out the tickets that commands printed, to the letter."""
    for run in runs:
        for ticket in run.out.split("\nText for a ticket to the ")[1:]:
            text = ticket.partition("\nRows that would stay")[0]
            rows = [key for key, _, _ in ticket_rows(text, product.config["site"])]
            records = list(ticket_records(text))
            for model in product.models.values():
                if isinstance(model, Apel):
                    model.delete(records=records)
                    model.delete_rows(rows)


def _config(
    ledger: StoredLedger, sources: Sequence[Ce | BatchSystem], form: str, chance: random.Random, *, split: bool
) -> dict[str, Any]:
    batch = chance.choice((1, 2, 500))
    common: dict[str, Any] = {"start": "all", "every": "1s", "batch_records": batch}
    ams = {**common, "type": "ams", "url": "https://ams.example.org", "topic": "gLite-APEL", "format": form}
    targets = {"egi": {**ams, "vos": ["atlas", "bio", "cms"]}}
    if chance.random() < 0.5 and split:
        targets = {"egi": {**ams, "vos": ["atlas", "cms"]}, "second": {**ams, "vos": ["bio"]}}
    if chance.random() < 0.3:
        targets["nordic"] = {**common, "type": "sgas", "url": "https://sgas.example.org/sgas", "format": "ogf-ur"}
    if chance.random() < 0.15:
        targets["auditor"] = {
            **common,
            "type": "auditor",
            "url": "https://auditor.example.org",
            "format": "auditor-record",
        }
    return {
        "site": "EXAMPLE-SITE",
        "source": [one.source for one in sources],
        **ledger.settings,
        "credentials": {"certificate": "/nowhere/cert.pem", "key": "/nowhere/key.pem", "ca": "/nowhere"},
        "records": {"benchmark": {"type": "HEPscore23", "value": 11.5}},
        "targets": targets,
    }
