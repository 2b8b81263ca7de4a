"""A Slurm of our own, from the system's packages: slurmctld, two slurmd, slurmdbd and MariaDB on loopback, as root."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.ports import reserved_port

PROGRAMS = (
    "mariadbd",
    "mariadb-install-db",
    "munged",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sacct",
    "sacctmgr",
    "sbatch",
)
CLUSTER = "hpc1"
_PATIENCE_S = 90


def missing() -> str:
    """Why none can be started here, or ''."""
    if os.getuid() != 0:
        return "a Slurm of our own is started as root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class LiveSlurm:
    """Running. `environment` has what Slurm's commands need."""

    def __init__(self, folder: Path) -> None:
        self.environment: Mapping[str, str] = {"PATH": os.environ["PATH"], "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def submit(self, script: str, *options: str) -> int:
        """The number of the job."""
        done = subprocess.run(
            ["sbatch", "--parsable", "--output=/dev/null", *options],
            env=self.environment,
            input=f"#!/bin/sh\n{script}\n",
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout.strip().partition(";")[0])

    def wait_until_idle(self) -> None:
        """Until no job waits or runs, and slurmdbd knows of all."""
        self._until(
            lambda: (
                not self.run("squeue", "--noheader", "--states=all", "--format=%i %T").split("\n")[0].strip()
                or not self.run("squeue", "--noheader").strip()
            )
        )

    def _until(self, done: object) -> None:
        assert callable(done)
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, "jobs did not end"
            time.sleep(0.2)


@contextmanager
def live_slurm(folder: Path) -> Iterator[LiveSlurm]:
    """Everything is started, and ended with the context."""
    host = socket.gethostname()
    # Slurm's daemons share a port with nobody: what is reserved is let go before they start.
    with ExitStack() as reserved:
        ports = {name: reserved.enter_context(reserved_port()) for name in ("sql", "dbd", "ctld", "node1", "node2")}
    for name in ("sql", "state", "log", "node1", "node2"):
        (folder / name).mkdir()
    _configure(folder, host, ports)
    slurm = LiveSlurm(folder)
    with ExitStack() as stack:

        def start(*command: str) -> None:
            log = stack.enter_context((folder / "log" / f"{Path(command[0]).name}.{len(command)}").open("ab"))
            process = subprocess.Popen(
                command, env=slurm.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(_end, process)

        database = str(folder / "sql")
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={database}", "--user=root", "--skip-test-db"],
            check=True,
            capture_output=True,
            timeout=_PATIENCE_S,
        )
        start(
            "mariadbd",
            "--no-defaults",
            "--user=root",
            "--character-set-server=utf8mb4",
            f"--datadir={database}",
            "--bind-address=127.0.0.1",
            f"--port={ports['sql']}",
            f"--socket={folder}/sql.socket",
        )
        user = "slurm@127.0.0.1"
        statement = f"CREATE USER {user} IDENTIFIED BY 'slurm'; CREATE DATABASE slurm; GRANT ALL ON slurm.* TO {user};"
        _retry(["mariadb", "--no-defaults", f"--socket={folder}/sql.socket", "-e", statement], slurm.environment)
        start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/log/munge",
            f"--seed-file={folder}/munge.seed",
        )
        start("slurmdbd", "-D")
        _retry(["sacctmgr", "-i", "add", "cluster", CLUSTER], slurm.environment)
        for account in ("atlas", "bio"):
            slurm.run("sacctmgr", "-i", "add", "account", account, f"Cluster={CLUSTER}")
        slurm.run("sacctmgr", "-i", "add", "user", "root", "Account=atlas,bio", "DefaultAccount=atlas")
        start("slurmctld", "-D")
        for node in ("node1", "node2"):
            start("slurmd", "-D", "-N", node)
        _retry(["sh", "-c", 'test "$(sinfo --noheader --format=%t | sort -u)" = idle'], slurm.environment)
        yield slurm


def _configure(folder: Path, host: str, ports: Mapping[str, int]) -> None:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    dbd = folder / "slurmdbd.conf"
    dbd.write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\nDbdHost=localhost\nDbdAddr=127.0.0.1\n"
        f"DbdPort={ports['dbd']}\nSlurmUser=root\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n"
        f"StoragePort={ports['sql']}\nStorageUser=slurm\nStoragePass=slurm\nStorageLoc=slurm\n"
        f"LogFile={folder}/log/dbd.log\nPidFile={folder}/dbd.pid\n"
    )
    dbd.chmod(0o600)
    for node in ("node1", "node2"):
        for number in range(2):
            (folder / f"{node}.gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu Type=a100 File={folder}/node1.gpu[0-1]\n")
    nodes = "".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node]} CPUs=16 RealMemory=4000 "
        f"Gres=gpu:a100:2 State=UNKNOWN\n"
        for node in ("node1", "node2")
    )
    (folder / "slurm.conf").write_text(
        f"ClusterName={CLUSTER}\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={ports['ctld']}\nSlurmUser=root\n"
        f"SlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket,cred_expire=8\n"
        f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
        f"AccountingStoragePort={ports['dbd']}\nAccountingStoragePass={folder}/munge.socket\n"
        "AccountingStorageTRES=gres/gpu,gres/gpu:a100\nGresTypes=gpu\nProctrackType=proctrack/linuxproc\n"
        "TaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=task=1\n"
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU_Memory\nDefMemPerCPU=50\n"
        f"SlurmdParameters=config_overrides\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/%n\n"
        f"SlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/%n.pid\nSlurmctldLogFile={folder}/log/ctld.log\n"
        f"SlurmdLogFile={folder}/log/%n.log\nKillWait=3\nSlurmdTimeout=20\nPrologFlags=Alloc,Contain\nMpiDefault=none\n"
        f"{nodes}PartitionName=batch Nodes=node1,node2 Default=YES State=UP\n"
    )


def _retry(command: Sequence[str], environment: Mapping[str, str]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, (command, done.stdout, done.stderr)
        time.sleep(0.3)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
