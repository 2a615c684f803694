"""The `http` mover: the trainer's host serves what is staged, and generators come for it.

A receiver keeps the bytes of its version, so that it can take patches to the next one. It asks for parts,
over a few connections, and goes on where one broke off. What arrives is verified like what is mapped: nothing
of it is used before its digest is right.
"""

import hmac
import http.client
import logging
import mmap
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import torch

from ratchet.refit.manifest import PatchInfo, RefitManifest
from ratchet.refit.rooms import KeepingReceiver, SenderRooms, part_of
from ratchet.refit.staging import check_names
from ratchet.spec import deadlines
from ratchet.spec.faults import InfraFault
from ratchet.spec.ids import WeightVersion

log = logging.getLogger(__name__)

MOVER = "http"
CONNECTIONS = 4
"""Of one receiver."""
TRIES = 5
"""Times a part may break off without a byte of it having come."""
TRY_AGAIN_AFTER = 0.2

Part = tuple[str, int]
"""`full` or `patch`, and the bucket."""


class HttpSender:
    """Serves the version that was staged last. With `keep_two`, patches from the one before it, too."""

    def __init__(self, prefix: str, host: str, *, keep_two: bool = False) -> None:
        """`host`: an address of this machine that generators reach."""
        self._prefix, self._host = prefix, host
        self._rooms = SenderRooms(keep_two=keep_two)
        self._token = secrets.token_hex(16)
        self._server: ThreadingHTTPServer | None = None
        self._staged: RefitManifest | None = None
        self._parts: Mapping[Part, memoryview] = {}
        self._lock = threading.Lock()

    def stage(
        self, version: WeightVersion, weights: Mapping[str, torch.Tensor], wire_dtypes: Mapping[str, str]
    ) -> RefitManifest:
        """See WeightSender. A receiver that is still reading the version before finds that out, and fails."""
        check_names(wire_dtypes, weights)
        with self._lock:
            before, self._staged, self._parts = self._staged, None, {}
        staged = self._rooms.stage(weights, wire_dtypes)
        parts = {("full", index): staged.bucket(index) for index in range(len(staged.layout.buckets))}
        if offered := staged.delta_from(before):
            parts |= {("patch", patch.bucket): memoryview(patch.body) for patch in staged.patches or ()}
        manifest = RefitManifest(
            version=version,
            mover=MOVER,
            segment=f"ratchet-{self._prefix}-{secrets.token_hex(4)}",
            url=self._serving(),
            token=self._token,
            layout=staged.layout,
            bucket_digests=staged.digests,
            delta=offered,
        )
        with self._lock:
            self._parts, self._staged = parts, manifest
        return manifest

    def holds(self, manifest: RefitManifest) -> bool:
        """Whether what was staged so is there still."""
        return self._staged is not None and self._staged.segment == manifest.segment

    def close(self) -> None:
        """Serve no more."""
        with self._lock:
            self._parts, self._staged = {}, None
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self._rooms.clear()

    def _serving(self) -> str:
        if self._server is None:
            self._server = ThreadingHTTPServer((self._host, 0), self._handler())
            self._server.daemon_threads = True
            threading.Thread(target=self._server.serve_forever, name="refit-http", daemon=True).start()
        return f"http://{self._host}:{self._server.server_port}"

    def _part(self, path: str) -> memoryview | None:
        segment, _, part = path.strip("/").partition("/")
        kind, _, bucket = part.partition("/")
        with self._lock:
            if self._staged is None or self._staged.segment != segment or not bucket.isdecimal():
                return None
            return self._parts.get((kind, int(bucket)))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sender = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = deadlines.REFIT_SILENT

            def do_GET(self) -> None:
                if not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {sender._token}"):
                    return self._refuse(403, "another token")
                part = sender._part(self.path)
                if part is None:
                    return self._refuse(410, "not staged, or not any more")
                start = _range_start(self.headers.get("Range"))
                if start > len(part):
                    return self._refuse(416, f"it has {len(part)} bytes")
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(part) - start))
                self.end_headers()
                self.wfile.write(part[start:])
                return None

            def _refuse(self, status: int, reason: str) -> None:
                self.send_response(status, reason)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                log.debug(format, *args)

        return Handler


class HttpReceiver(KeepingReceiver):
    """Fetches what a sender serves, and keeps it."""

    def _fetch_all(self, manifest: RefitManifest, buffer: mmap.mmap) -> None:
        buckets = range(len(manifest.layout.buckets))
        self._fetch(manifest, "full", [part_of(buffer, manifest.layout, index) for index in buckets])

    def _fetch_patches(self, manifest: RefitManifest, patches: Sequence[PatchInfo]) -> list[bytes]:
        bodies = [bytearray(patch.num_bytes) for patch in patches]
        self._fetch(manifest, "patch", [memoryview(body) for body in bodies])
        return [bytes(body) for body in bodies]

    def _fetch(self, manifest: RefitManifest, kind: str, into: Sequence[memoryview]) -> None:
        """Fill each with the part of its index. Raises InfraFault."""
        wanted = [(index, view) for index, view in enumerate(into) if len(view)]
        chunks = [wanted[offset::CONNECTIONS] for offset in range(CONNECTIONS)]
        failed: list[BaseException] = []

        def fetch(chunk: Sequence[tuple[int, memoryview]]) -> None:
            try:
                with _Connection(manifest, lambda: bool(failed)) as connection:
                    for index, view in chunk:
                        connection.read(f"{kind}/{index}", view)
            except BaseException as error:
                failed.append(error)  # the others need not go on

        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="refit-http") as pool:
            for chunk in chunks:
                pool.submit(fetch, chunk)
        if failed:
            raise failed[0]
        self.fetched_bytes += sum(len(view) for _, view in wanted)


class _Connection:
    """To one sender, made again when it breaks."""

    def __init__(self, manifest: RefitManifest, given_up: Callable[[], bool]) -> None:
        self._manifest, self._given_up = manifest, given_up
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def read(self, part: str, view: memoryview) -> None:
        """Fill `view` with it. Raises InfraFault, saying why it cannot be had."""
        filled, failures = 0, 0
        while filled < len(view):
            if self._given_up():
                raise InfraFault(f"refit of {self._manifest.version}: another part of it failed")
            before = filled
            try:
                filled = self._read_on(part, view, filled)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                failures = 0 if filled > before else failures + 1
                if failures == TRIES:
                    raise InfraFault(
                        f"refit of {self._manifest.version}: {self._manifest.url} could not be read in "
                        f"{TRIES} tries ({type(error).__name__}: {error}): is the trainer's host up?"
                    ) from error
                time.sleep(TRY_AGAIN_AFTER)

    def _read_on(self, part: str, view: memoryview, filled: int) -> int:
        """Read as much as comes: how much is there then. Raises OSError if nothing more came."""
        headers = {"Authorization": f"Bearer {self._manifest.token}", "Range": f"bytes={filled}-"}
        connection = self._connected()
        connection.request("GET", f"/{self._manifest.segment}/{part}", headers=headers)
        answer = connection.getresponse()
        if answer.status not in (200, 206):
            answer.read()
            raise InfraFault(
                f"refit of {self._manifest.version}: {self._manifest.url} answers {answer.status} "
                f"({answer.reason}): stage it again"
            )
        started = filled
        while filled < len(view):
            try:
                count = answer.readinto(view[filled:])
            except (OSError, http.client.HTTPException):
                count = 0
            if not count:
                self._drop()
                if filled == started:
                    raise ConnectionError("it was closed before a byte came")
                break
            filled += count
        return filled

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            where = urlsplit(self._manifest.url)
            self._connection = http.client.HTTPConnection(
                where.hostname or "", where.port, timeout=deadlines.REFIT_SILENT
            )
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _range_start(header: str | None) -> int:
    """Of `bytes=N-`, which is all that is ever asked here."""
    start = (header or "").removeprefix("bytes=").removesuffix("-")
    return int(start) if start.isdecimal() else 0
