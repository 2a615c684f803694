"""Every mover, with and without patches: the same bits on the other side, or a fault that says what to do."""

import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from ratchet.artifacts.store import LocalArtifactStore
from ratchet.refit import http, staging
from ratchet.refit.manifest import RefitManifest
from ratchet.refit.protocol import WeightReceiver, WeightSender
from ratchet.refit.registry import create_receiver, create_sender, weights_key
from ratchet.refit.segments import sweep
from ratchet.refit.store import newest
from ratchet.spec import deadlines
from ratchet.spec.faults import InfraFault
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RefitSpec

Weights = dict[str, torch.Tensor]

SPECS = {
    "ipc": RefitSpec(),
    "http": RefitSpec(transport="http"),
    "http+delta": RefitSpec(transport="http", codec="delta"),
    "collective": RefitSpec(transport="collective"),
    "collective+delta": RefitSpec(transport="collective", codec="delta"),
    "store": RefitSpec(transport="store"),
    "store+delta": RefitSpec(transport="store", codec="delta", full_every=4),
}


def version(step: int) -> WeightVersion:
    return WeightVersion(incarnation=1, step=step, digest=f"{step:032x}")


def model(step: int, *, sparse: bool = False) -> Weights:
    """Odd shapes, none of them contiguous where that is possible, and a tensor of several buckets."""
    torch.manual_seed(0 if sparse else step)
    weights = {
        "embedding": torch.randn(33, 700).T,
        "expert.0": torch.randn(5, 3, 7)[:, 1],
        "expert.1": torch.randn(5, 7),
        "norm": torch.randn(13)[::2],
        "scalar": torch.randn(()),
        "none": torch.randn(0, 4),
    }
    if sparse:
        weights["embedding"][step] += 1.0
    return weights


def wire(dtype: str) -> dict[str, str]:
    return dict.fromkeys(model(0), dtype)


@pytest.fixture(params=list(SPECS))
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RefitSpec:
    monkeypatch.setattr(staging, "BUCKET_BYTES", 8 << 10)
    return SPECS[request.param]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Callable[[RefitSpec], tuple[WeightSender, WeightReceiver]]]:
    with ExitStack() as stack:

        def made(spec: RefitSpec) -> tuple[WeightSender, WeightReceiver]:
            prefix, home = f"test{secrets.token_hex(4)}", Home(tmp_path)
            sender = create_sender(spec, home, "run", prefix, "127.0.0.1")
            receiver = create_receiver(spec, home, "run")
            for close in (lambda: sweep(prefix), sender.close, receiver.close):
                stack.callback(close)
            return sender, receiver

        yield made


def received(receiver: WeightReceiver, manifest: RefitManifest) -> Weights:
    # As its model says, like a process of its own would get it.
    manifest = RefitManifest.model_validate_json(manifest.model_dump_json())
    with receiver.open(manifest) as tensors:
        return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same_bits(got: Weights, want: Weights, dtype: str) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        expected = tensor.to(getattr(torch, dtype))
        assert (got[name].dtype, got[name].shape) == (expected.dtype, expected.shape)
        bits, expected_bits = (
            each.contiguous().reshape(-1).view(torch.uint8) for each in (got[name], expected)
        )
        assert torch.equal(bits, expected_bits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_version_after_version_arrives_bit_by_bit(spec: RefitSpec, ends, dtype: str) -> None:
    sender, receiver = ends(spec)
    for step, weights in enumerate([model(1), model(2), model(3, sparse=True), model(4, sparse=True)]):
        manifest = sender.stage(version(step), weights, wire(dtype))
        assert sender.holds(manifest)
        assert_same_bits(received(receiver, manifest), weights, dtype)


def test_another_layout_arrives_too(spec: RefitSpec, ends) -> None:
    sender, receiver = ends(spec)
    received(receiver, sender.stage(version(1), model(1), wire("float32")))
    other = {"w": torch.randn(3)}
    assert_same_bits(received(receiver, sender.stage(version(2), other, {"w": "float32"})), other, "float32")


def test_a_receiver_that_comes_late_gets_all_of_it(spec: RefitSpec, ends) -> None:
    sender, _ = ends(spec)
    _, late = ends(spec)
    sender.stage(version(1), model(1), wire("bfloat16"))
    weights = model(2)
    assert_same_bits(received(late, sender.stage(version(2), weights, wire("bfloat16"))), weights, "bfloat16")


def test_names_that_differ_are_refused_and_nothing_is_lost(spec: RefitSpec, ends) -> None:
    sender, receiver = ends(spec)
    manifest = sender.stage(version(1), model(1), wire("float32"))
    with pytest.raises(InfraFault, match="no generator takes: extra"):
        sender.stage(version(2), model(2) | {"extra": torch.zeros(1)}, wire("float32"))
    assert_same_bits(received(receiver, manifest), model(1), "float32")


# --- patches


@pytest.fixture(params=["http+delta", "collective+delta", "store+delta"])
def patching(request: pytest.FixtureRequest) -> RefitSpec:
    return SPECS[request.param]


def test_patches_travel_where_the_base_is_known_and_all_of_it_where_it_is_not(ends) -> None:
    sender, receiver = ends(SPECS["http+delta"])
    full = sum(bucket.num_bytes for bucket in staging.plan(wire("bfloat16"), shapes()).buckets)
    received(receiver, sender.stage(version(0), model(0, sparse=True), wire("bfloat16")))
    assert receiver.fetched_bytes == full
    manifest = sender.stage(version(1), model(1, sparse=True), wire("bfloat16"))
    assert_same_bits(received(receiver, manifest), model(1, sparse=True), "bfloat16")
    assert 0 < receiver.fetched_bytes < 0.05 * full
    received(receiver, manifest)
    assert receiver.fetched_bytes == 0, "it has that version"

    sender.stage(version(2), model(2, sparse=True), wire("bfloat16"))  # which the receiver misses
    manifest = sender.stage(version(3), model(3, sparse=True), wire("bfloat16"))
    assert_same_bits(received(receiver, manifest), model(3, sparse=True), "bfloat16")
    assert receiver.fetched_bytes == full


def test_a_base_that_was_spoilt_is_found_out_and_replaced(patching: RefitSpec, ends) -> None:
    sender, receiver = ends(patching)
    received(receiver, sender.stage(version(0), model(0, sparse=True), wire("bfloat16")))
    receiver._buffer[77] ^= 0x40
    manifest = sender.stage(version(1), model(1, sparse=True), wire("bfloat16"))
    assert_same_bits(received(receiver, manifest), model(1, sparse=True), "bfloat16")


def shapes() -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model(0).items()}


# --- versions that stay


def test_a_new_receiver_starts_from_the_store_alone_at_any_version(ends, tmp_path: Path) -> None:
    spec = SPECS["store+delta"]
    sender, follower = ends(spec)
    store, key = LocalArtifactStore(Home(tmp_path).artifacts), weights_key("run")
    fetched: list[int] = []
    for step in range(10):
        manifest = sender.stage(version(step), model(step, sparse=True), wire("bfloat16"))
        assert newest(store, key) == manifest
        assert_same_bits(received(follower, manifest), model(step, sparse=True), "bfloat16")
        fetched.append(follower.fetched_bytes)
        _, late = ends(spec)
        assert_same_bits(received(late, manifest), model(step, sparse=True), "bfloat16")
    whole = max(fetched)
    assert [count == whole for count in fetched] == [step % 4 == 0 for step in range(10)]
    kept = [name.rsplit("-", 2)[1] for name in store.list(key)]
    assert kept == [f"{step:08d}" for step in range(4, 10)], "from the whole version before the last one on"


def test_a_sender_that_is_made_again_goes_on_in_the_same_place(ends, tmp_path: Path) -> None:
    spec = SPECS["store+delta"]
    sender, follower = ends(spec)
    for step in range(3):
        received(follower, sender.stage(version(step), model(step, sparse=True), wire("bfloat16")))
    again, _ = ends(spec)
    manifest = again.stage(version(3), model(3, sparse=True), wire("bfloat16"))
    assert manifest.delta is None, "it does not know what the one before it had staged last"
    assert_same_bits(received(follower, manifest), model(3, sparse=True), "bfloat16")
    store = LocalArtifactStore(Home(tmp_path).artifacts)
    assert newest(store, weights_key("run")) == manifest


def test_a_version_that_was_not_finished_is_none(ends, tmp_path: Path) -> None:
    sender, receiver = ends(SPECS["store"])
    manifests = [sender.stage(version(step), model(step), wire("bfloat16")) for step in (1, 2)]
    store, key = LocalArtifactStore(Home(tmp_path).artifacts), weights_key("run")
    store.remove_tree(f"{key}/{manifests[1].segment}/manifest.json")
    assert newest(store, key) == manifests[0]
    assert not sender.holds(manifests[1])
    store.remove_tree(f"{key}/{manifests[1].segment}")
    with pytest.raises(InfraFault, match=r"cannot be read.*stage them again"):
        received(receiver, manifests[1])


# --- a network that fails


class Flaky:
    """Between a receiver and a sender: cuts its first connections after so many bytes of answer each."""

    def __init__(self, url: str, cuts: list[int]) -> None:
        self._target = (urlsplit(url).hostname, urlsplit(url).port)
        self._cuts = cuts
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            allowed = self._cuts.pop(0) if self._cuts else None
            server = socket.create_connection(self._target)
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, allowed), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, allowed: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(4096 if allowed is None else min(4096, allowed)):
                target.sendall(data)
                if allowed is not None and (allowed := allowed - len(data)) <= 0:
                    self.cut += 1
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()  # the target is the other thread's

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TRY_AGAIN_AFTER", 0.01)
    monkeypatch.setattr(deadlines, "REFIT_SILENT", 1.0)


@pytest.mark.usefixtures("quick")
def test_a_connection_that_breaks_is_taken_up_where_it_broke(ends) -> None:
    sender, receiver = ends(SPECS["http"])
    weights = {"w": torch.randn(1 << 18)}
    manifest = sender.stage(version(1), weights, {"w": "float32"})
    flaky = Flaky(manifest.url, [300_000, 200_000, 90, 400_000])
    manifest = manifest.model_copy(update={"url": flaky.url})
    assert_same_bits(received(receiver, manifest), weights, "float32")
    assert flaky.cut == 4
    flaky.close()


SENDER = """
import sys
from pathlib import Path
import torch
from ratchet.refit.registry import create_sender
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RefitSpec

torch.manual_seed(1)
sender = create_sender(RefitSpec(transport=sys.argv[1]), Home(Path(sys.argv[2])), "run", "dies", "127.0.0.1")
version = WeightVersion(incarnation=1, step=1, digest="0" * 32)
print(sender.stage(version, {"w": torch.randn(1 << 22)}, {"w": "float32"}).model_dump_json(), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("transport", ["http", "collective"])
def test_a_sender_that_dies_is_a_fault_that_names_it_and_the_next_one_serves(
    ends, transport: str, tmp_path: Path
) -> None:
    _, receiver = ends(SPECS[transport])
    words = [sys.executable, "-c", SENDER, transport, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        manifest = RefitManifest.model_validate_json(process.stdout.readline())
        process.kill()
    began = time.monotonic()
    with pytest.raises(InfraFault, match=manifest.url):
        received(receiver, manifest)
    assert time.monotonic() - began < 10.0
    sender, _ = ends(SPECS[transport])
    weights = {"w": torch.randn(1 << 22)}
    manifest = sender.stage(version(2), weights, {"w": "float32"})
    assert_same_bits(received(receiver, manifest), weights, "float32")


@pytest.mark.usefixtures("quick")
def test_what_is_not_staged_any_more_and_who_has_no_token_is_told_so(ends) -> None:
    sender, receiver = ends(SPECS["http"])
    old = sender.stage(version(1), model(1), wire("float32"))
    new = sender.stage(version(2), model(2), wire("float32"))
    with pytest.raises(InfraFault, match=r"answers 410 .*stage it again"):
        received(receiver, old)
    with pytest.raises(InfraFault, match="answers 403"):
        received(receiver, new.model_copy(update={"token": "guessed"}))
    assert "token" not in repr(new)
    assert_same_bits(received(receiver, new), model(2), "float32")


@pytest.mark.usefixtures("quick")
def test_a_receiver_that_asks_and_dies_holds_up_the_next_one_for_its_deadline_only(ends) -> None:
    sender, receiver = ends(SPECS["collective"])
    manifest = sender.stage(version(1), model(1), wire("float32"))
    where = urlsplit(manifest.url)
    gone = torch.distributed.TCPStore(where.hostname or "", where.port or 0, is_master=False)
    gone.set(f"asked/{gone.add('attempts', 1)}", f"{manifest.segment}/full")
    del gone
    began, got = time.monotonic(), None
    while got is None:
        with suppress(InfraFault):
            got = received(receiver, manifest)
        assert time.monotonic() - began < 10.0
    assert_same_bits(got, model(1), "float32")


@pytest.mark.usefixtures("quick")
def test_a_broadcast_of_what_is_not_staged_any_more_is_refused(ends) -> None:
    sender, receiver = ends(SPECS["collective"])
    old = sender.stage(version(1), model(1), wire("float32"))
    new = sender.stage(version(2), model(2), wire("float32"))
    with pytest.raises(InfraFault, match="does not have it any more: stage it again"):
        received(receiver, old)
    assert_same_bits(received(receiver, new), model(2), "float32")
