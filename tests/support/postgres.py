"""A private PostgreSQL for tests: on a socket in a directory of its own, gone with the process that started it."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.support.patience import PATIENCE_S
from tests.support.pki import Credential

_PACKAGES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/bin", "/usr/local/pgsql/bin")
ROLE = "publisher"


def binaries(packages: Iterable[str] = _PACKAGES) -> Path | None:
    """Where the newest PostgreSQL of this machine has its programs; None where there is none."""
    roots = [path for pattern in packages for path in Path("/").glob(pattern.removeprefix("/"))]
    return next((path for path in sorted(roots, reverse=True) if (path / "initdb").exists()), None)


def address_at(folder: Path, database: str = "site", role: str = ROLE) -> str:
    """Return the address of a database of the server that listens in a folder."""
    return f"postgresql:///{database}?host={quote(str(folder), safe='')}&user={role}"


class PostgresServer:
    """A server that can be stopped as a crash stops it, and started again."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self.folder = folder
        self._data = folder / "data"
        self._port = 5432
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else getpass.getuser()

    @property
    def address(self) -> str:
        """For the role that publishes, which may do what docs/fleet.md says and no more."""
        return address_at(self.folder)

    @property
    def admin_address(self) -> str:
        return address_at(self.folder, role="postgres")

    @property
    def socket(self) -> str:
        return str(self.folder / f".s.PGSQL.{self._port}")

    @property
    def process_id(self) -> int:
        return self._process.pid if self._process is not None else 0

    def prepare(self) -> None:
        if os.geteuid() == 0:
            found = pwd.getpwnam(self._user)
            os.chown(self.folder, found.pw_uid, found.pw_gid)
        settings = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "-D", str(self._data), *settings)
        with (self._data / "postgresql.conf").open("a") as settings_file:
            settings_file.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nfsync = off\n"
                "max_connections = 60\nshared_buffers = 32MB\n"
            )
        self.start()
        self.sql(f"CREATE ROLE {ROLE} LOGIN", database="postgres")
        self.sql(f"CREATE DATABASE site OWNER {ROLE}", database="postgres")

    def listen(self, port: int, credential: Credential | None) -> None:
        """From now on at a port of the loopback too, by TLS alone with this certificate; without one it knows no TLS."""
        kind = "host" if credential is None else "hostssl"
        (self._data / "pg_hba.conf").write_text(f"local all all trust\n{kind} all all 127.0.0.1/32 trust\n")
        lines = ["listen_addresses = '127.0.0.1'", f"port = {port}", f"ssl = {'off' if credential is None else 'on'}"]
        if credential is not None:
            for name, path in (("server.crt", credential.certificate), ("server.key", credential.key)):
                copy = self._data / name
                copy.unlink(missing_ok=True)
                shutil.copyfile(path, copy)
                shutil.chown(copy, self._user)
                copy.chmod(0o600)
        with (self._data / "postgresql.conf").open("a") as settings_file:
            settings_file.write("\n".join(lines) + "\n")
        self._port = port
        self.stop(signal.SIGINT)
        self.start()

    def replica(self) -> PostgresServer:
        """Another server that follows this one from here on, once it is started."""
        folder = self.folder / "replica"
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, self._user)
        made = PostgresServer(self._programs, folder)
        source = ["-h", str(self.folder), "-U", "postgres", "--no-sync", "--checkpoint=fast"]
        self._run("pg_basebackup", "-D", str(made._data), "--write-recovery-conf", *source)
        with (made._data / "postgresql.conf").open("a") as settings_file:
            settings_file.write(f"unix_socket_directories = '{folder}'\n")
        return made

    def promote(self) -> None:
        """Make a primary of a replica."""
        self.sql("SELECT pg_promote()", database="postgres")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), str(self._programs / "postgres"), "-D", str(self._data)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_S
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self._port)]
        while subprocess.run(ready, check=False).returncode:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """SIGQUIT is what `pg_ctl stop -m immediate` sends: a crash; SIGINT ends connections in order."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def sql(self, statement: str, *, database: str = "site") -> str:
        """As the superuser."""
        command = [str(self._programs / "psql"), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-p", str(self._port)]
        return subprocess.run(
            [*command, "-h", str(self.folder), "-U", "postgres", "-d", database, "-c", statement],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user(), str(self._programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def _as_user(self) -> list[str]:
        command = ["setpriv", "--pdeathsig", "QUIT"]
        if os.geteuid() == 0:
            found = pwd.getpwnam(self._user)
            command += [f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups"]
        return command


@contextmanager
def private_server(programs: Path) -> Iterator[PostgresServer]:
    """A server of its own, empty but for the role and its database."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="publisher-postgres-", dir=root))
    server = PostgresServer(programs, folder)
    try:
        server.prepare()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
