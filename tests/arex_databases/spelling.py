"""How A-REX spells a job in its tables: percent-escapes, 32-bit numbers, local time."""

import re
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from tests.arex_databases.jobs import Event, SampleJob, SqlValue
from tests.arex_databases.schema import Schema

Row = dict[str, SqlValue]

_ESCAPES = str.maketrans({char: f"%{ord(char):02x}" for char in "'#%\r\n\b\0"})
_ESCAPED = re.compile("['#%\r\n\b\0]")


def escaped(text: str) -> str:
    """Text as A-REX stores it: `'`, `#`, `%`, CR, LF, BS and NUL as lower-case %xx, all else as it is."""
    return text.translate(_ESCAPES) if _ESCAPED.search(text) else text  # few texts need it, and looking is cheaper


def wrapped(number: int) -> int:
    """A number after its way through a signed 32-bit integer."""
    return (number + 2**31) % 2**32 - 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """The rows of a job, RecordID left out.

    `distort=False` is what conversions write: text as it is, 64-bit numbers. `nodes_key` is `nodenames` as A-REX
    writes it, or `nodename` as ARC's reader looks for it.
    """

    schema: Schema
    zone: ZoneInfo
    distort: bool = True
    nodes_key: str = "nodenames"

    def text(self, value: str) -> str:
        """Text as stored."""
        return escaped(value) if self.distort else value

    def number(self, value: int) -> int:
        """A number as stored."""
        return wrapped(value) if self.distort else value

    def local_time(self, epoch: int) -> str:
        """Wall clock of the CE without a zone; the autumn hour is ambiguous."""
        return str(datetime.fromtimestamp(epoch, self.zone))[:19]

    def usage(self, job: SampleJob) -> Row:
        """The columns of AAR that are known at the end, the name tables' apart."""
        return {
            "LocalJobID": None if job.local_job_id is None else self.text(job.local_job_id),
            "ExitCode": self.number(job.exit_code),
            "EndTime": self.number(job.end_time),
            "NodeCount": self.number(job.nodes),
            "CPUCount": self.number(job.cpus),
            "UsedMemory": self.number(job.memory_kib),
            "UsedVirtMem": self.number(job.virtual_memory_kib),
            "UsedWalltime": self.number(job.wall_s),
            "UsedCPUUserTime": self.number(job.cpu_user_s),
            "UsedCPUKernelTime": self.number(job.cpu_kernel_s),
            "UsedScratch": self.number(job.scratch_bytes),
            "StageInVolume": self.number(job.stage_in_bytes),
            "StageOutVolume": self.number(job.stage_out_bytes),
        }

    def side_rows(self, job: SampleJob) -> dict[str, list[Row]]:
        """All rows of a finished job but AAR's, by table."""
        return {
            "AuthTokenAttributes": self.token_attributes(job),
            "JobEvents": [self.event(event) for event in sorted(job.events, key=lambda event: event.key != "ACCEPTED")],
            "RunTimeEnvironments": self.rtes(job),
            "DataTransfers": self.transfers(job),
            "JobExtraInfo": self.extra_info(job),
        }

    def token_attributes(self, job: SampleJob) -> list[Row]:
        """Rows of AuthTokenAttributes; the first FQAN is `mainfqan` in schema 1."""
        pairs = [("mainfqan" if self.schema == 1 and n == 0 else "vomsfqan", fqan) for n, fqan in enumerate(job.fqans)]
        pairs += job.token_attributes
        return [{"AttrKey": self.text(key), "AttrValue": self.text(value)} for key, value in pairs]

    def extra_info(self, job: SampleJob) -> list[Row]:
        """Rows of JobExtraInfo, by key as A-REX's map gives them; only the first project survives there."""
        values = {
            "benchmark": job.benchmark if self.schema == 1 else None,
            "clienthost": job.client_host,
            "jobname": job.job_name,
            "localuser": job.local_user,
            "lrms": job.lrms,
            self.nodes_key: ":".join(job.node_names) if job.node_names else None,
            "projectname": job.projects[0] if job.projects else None,
            "systemsoftware": job.system_software,
            "wninstance": job.wn_instance,
        }
        return [
            {"InfoKey": key, "InfoValue": self.text(value)}
            for key, value in sorted(values.items())
            if value is not None
        ]

    def rtes(self, job: SampleJob) -> list[Row]:
        """Rows of RunTimeEnvironments."""
        return [{"RTEName": self.text(rte)} for rte in job.rtes]

    def transfers(self, job: SampleJob) -> list[Row]:
        """Rows of DataTransfers."""
        return [
            {
                "URL": self.text(transfer.url),
                "FileSize": self.number(transfer.size),
                "TransferStart": self.number(transfer.start),
                "TransferEnd": self.number(transfer.end),
                "TransferType": int(transfer.kind),
            }
            for transfer in job.transfers
        ]

    def event(self, event: Event) -> Row:
        """A row of JobEvents."""
        return {"EventKey": self.text(event.key), "EventTime": self.local_time(event.at)}
