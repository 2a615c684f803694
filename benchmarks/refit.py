"""How fast weights get from one process to another, by every mover, beside what the machine can do.

The sender stages a version in the generator's dtype; the receiver, a process of its own, opens it (that
verifies every byte) and copies it over weights that it has: that copy is all that a generator has to pause
for. Beside `ipc` stands a copy in memory, beside `http` a bare socket, beside `collective` a bare
broadcast over gloo, in the same run.
"""

import multiprocessing
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from benchmarks.report import Report, arguments
from ratchet.refit.manifest import RefitManifest
from ratchet.refit.registry import create_receiver, create_sender
from ratchet.refit.segments import sweep
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RefitSpec

MOVERS = {
    "ipc": RefitSpec(),
    "http": RefitSpec(transport="http"),
    "http+delta": RefitSpec(transport="http", codec="delta"),
    "collective": RefitSpec(transport="collective"),
    "store+delta": RefitSpec(transport="store", codec="delta"),
}
MODELS = {"134m": (49152, 576, 1536, 30), "1b": (49152, 2048, 8192, 20)}
"""Vocabulary, hidden size, inner size, layers: the shapes of a Llama with a tied embedding."""
ROUNDS, QUICK_ROUNDS = 5, 2
GIB = 2.0**30
Weights = dict[str, torch.Tensor]


class Round(NamedTuple):
    stage_s: float
    fetch_s: float
    """Until every byte is there and verified."""
    pause_s: float
    """Copying them over the weights of a model."""
    fetched_bytes: int


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--changed", type=float, default=0.01, help="share of weights that a step changes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report, rounds = Report(options.json_only), QUICK_ROUNDS if options.quick else ROUNDS
    names = ["134m"] if options.quick else list(MODELS)
    result: dict[str, dict[str, dict[str, float]]] = {}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            weights = model(*MODELS[name])
            num_bytes = sum(2 * tensor.numel() for tensor in weights.values())
            raw = {"http": socket_gib_s(num_bytes), "collective": gloo_gib_s(num_bytes)}
            memory = memcpy_gib_s(num_bytes)
            for mover, spec in MOVERS.items():
                report.progress(f"{name}: {mover}")
                done = measure(spec, Home(root), weights, options.changed, rounds)
                moved = median(each.fetch_s for each in done)
                seconds = median(each.stage_s + each.fetch_s for each in done)
                measured = {
                    "seconds": round(seconds, 4),
                    "stage_s": round(median(each.stage_s for each in done), 4),
                    "fetch_s": round(moved, 4),
                    "pause_ms": round(1000 * median(each.pause_s for each in done), 1),
                    "gib_s": round(num_bytes / GIB / seconds, 3),
                    "ratio_to_raw": round(num_bytes / GIB / moved / raw.get(spec.transport, memory), 3),
                    "bytes_fraction": round(median(each.fetched_bytes for each in done) / num_bytes, 4),
                }
                result.setdefault(mover, {})[name] = measured
                rows.append([f"{mover}, {name}", *(f"{value:g}" for value in measured.values())])
    report.publish(
        f"refit in bfloat16, {options.changed:.1%} of the weights changed",
        ["", "seconds", "stage", "fetch", "pause ms", "GiB/s", "to raw", "bytes"],
        rows,
        {"benchmark": "refit", "changed": options.changed, "transports": result},
    )


def model(vocabulary: int, hidden: int, inner: int, layers: int) -> Weights:
    torch.manual_seed(0)
    shapes = {"embedding": (vocabulary, hidden), "norm": (hidden,)}
    for layer in range(layers):
        for part in ("q", "k", "v", "o"):
            shapes[f"layers.{layer}.{part}"] = (hidden, hidden)
        shapes[f"layers.{layer}.gate"] = shapes[f"layers.{layer}.up"] = (inner, hidden)
        shapes[f"layers.{layer}.down"] = (hidden, inner)
    return {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


def step(weights: Weights, changed: float) -> None:
    """Change that share of the weights, as an optimizer step would."""
    for tensor in weights.values():
        flat = tensor.view(-1)
        places = torch.randint(0, len(flat), (max(1, int(changed * len(flat))),))
        flat[places] += 0.01


def measure(spec: RefitSpec, home: Home, weights: Weights, changed: float, rounds: int) -> list[Round]:
    prefix = f"bench{secrets.token_hex(4)}"
    sender = create_sender(spec, home, "bench", prefix, "127.0.0.1")
    wire = dict.fromkeys(weights, "bfloat16")
    done: list[Round] = []
    try:
        with receiver_of(spec, home, weights) as ask:
            for number in range(rounds + 1):
                step(weights, changed)
                version = WeightVersion(incarnation=1, step=number, digest=f"{number:032x}")
                began = time.perf_counter()
                manifest = sender.stage(version, weights, wire)
                staged = time.perf_counter() - began
                ask.send(manifest)
                fetch_s, pause_s, fetched = ask.recv()
                done.append(Round(staged, fetch_s, pause_s, fetched))
    finally:
        sender.close()
        sweep(prefix)
    return done[1:]  # the first one allocates, and has nothing to compare with


@contextmanager
def receiver_of(spec: RefitSpec, home: Home, weights: Weights) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    process = context.Process(target=_receive, args=(spec, home.root, shapes, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.send(None)
        process.join(30)


def _receive(spec: RefitSpec, root: Path, shapes: dict[str, tuple[int, ...]], connection: Any) -> None:
    torch.set_num_threads(1)
    receiver = create_receiver(spec, Home(root), "bench")
    own = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    while (manifest := connection.recv()) is not None:
        assert isinstance(manifest, RefitManifest)
        began = time.perf_counter()
        with receiver.open(manifest) as tensors:
            fetched = time.perf_counter()
            for name, tensor in tensors.items():
                own[name].copy_(tensor)
            loaded = time.perf_counter()
        connection.send((fetched - began, loaded - fetched, receiver.fetched_bytes))
    receiver.close()


def memcpy_gib_s(num_bytes: int) -> float:
    source, target = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))
    seconds: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return num_bytes / GIB / median(seconds)


def socket_gib_s(num_bytes: int) -> float:
    """One connection, both ends in this process."""
    data, into = bytearray(num_bytes), memoryview(bytearray(num_bytes))
    seconds: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(3):
            client = socket.create_connection(server.getsockname())
            sending, _ = server.accept()
            with client, sending:
                began = time.perf_counter()
                thread = Thread(target=sending.sendall, args=(data,))
                thread.start()
                filled = 0
                while filled < num_bytes:
                    filled += client.recv_into(into[filled:])
                seconds.append(time.perf_counter() - began)
                thread.join()
    return num_bytes / GIB / median(seconds)


def gloo_gib_s(num_bytes: int) -> float:
    """A broadcast to another process."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=_take_part, args=(store.port, num_bytes), daemon=True)
    other.start()
    seconds = _broadcasts(store, 0, num_bytes)
    other.join(30)
    return num_bytes / GIB / median(seconds)


def _take_part(port: int, num_bytes: int) -> None:
    _broadcasts(dist.TCPStore("127.0.0.1", port, is_master=False), 1, num_bytes)


def _broadcasts(store: dist.Store, rank: int, num_bytes: int) -> list[float]:
    group: Any = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
    data = torch.ones(num_bytes, dtype=torch.uint8)
    seconds: list[float] = []
    for _ in range(4):
        began = time.perf_counter()
        group.broadcast([data], dist.BroadcastOptions()).wait()
        # Both have it now: to hand it over is not to have brought it.
        group.barrier(dist.BarrierOptions()).wait()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


if __name__ == "__main__":
    main()
