"""TransferQueue as its documentation uses it, in a process of its own that attaches to a Ray cluster."""

import logging
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.data_plane_cases import SAMPLES, Case, plain_rows, prompt_groups
from ratchet.spec.faults import RatchetError

PARTITION = "train"
STORES: dict[str, dict[str, Any]] = {
    "simple": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}},
    "mooncake_cpu": {
        "storage_backend": "MooncakeStore",
        "MooncakeStore": {"auto_init": False, "metadata_server": "P2PHANDSHAKE"},
    },
    "ray": {"storage_backend": "RayStore"},
}
"""Backend -> what of the library's defaults is not left as it is, besides `polling_mode`. Its own start
of Mooncake would end every other one of the machine."""
START, TURN = 120.0, 120.0
"""Seconds."""


class RawSide:
    """The other process."""

    def __init__(self, backend: str, address: str) -> None:
        """Raises RatchetError with its last words if it does not come up."""
        if backend not in STORES:
            raise RatchetError(f"the library alone is not set up here for {backend}")
        fresh = multiprocessing.get_context("spawn")
        self._pipe, theirs = fresh.Pipe()
        self._process = fresh.Process(target=serve, args=(theirs, backend, address), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._answer(START)
        except BaseException:
            self.close()
            raise

    def turn(self, case: Case) -> tuple[float, float]:
        """Seconds of one put of the whole case, and of one get."""
        self._pipe.send(case)
        return self._answer(TURN)

    def _answer(self, within: float) -> Any:
        if not self._pipe.poll(within):
            raise RatchetError(f"the library alone did not answer within {within:.0f} s")
        try:
            result, error = self._pipe.recv()
        except EOFError:
            raise RatchetError("the process of the library alone died") from None
        if error:
            raise RatchetError(f"the library alone: {error}")
        return result

    def close(self) -> None:
        self._pipe.close()
        self._process.join(30.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def serve(pipe: Connection, backend: str, address: str) -> None:
    """Answer until the pipe is closed."""
    os.environ["TQ_LOGGING_LEVEL"] = "ERROR"  # else it writes a line for every call
    import ray
    import transfer_queue
    from omegaconf import OmegaConf

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    made: dict[Case, tuple[list[str], Any]] = {}
    masters: dict[str, Any] = {}
    try:
        conf = OmegaConf.create(
            {"controller": {"polling_mode": True}, "backend": STORES[backend]}, flags={"allow_objects": True}
        )
        if backend == "mooncake_cpu":
            from workers.actors.mooncake_master import start_master

            host = ray.util.get_node_ip_address()
            conf.backend.MooncakeStore.master_server_address = f"{host}:{start_master(masters, host)}"
        transfer_queue.init(conf)
        pipe.send((None, None))
        while True:
            case: Case = pipe.recv()
            if case not in made:
                made.clear()
                made[case] = _rows(case)
            pipe.send((_turn(transfer_queue, *made[case]), None))
    except EOFError:
        pass
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}"))
    finally:
        transfer_queue.close()
        for master in masters.values():
            master.kill()
            master.wait()
        ray.shutdown()


def _turn(library: Any, keys: list[str], fields: Any) -> tuple[float, float]:
    began = time.perf_counter()
    library.kv_batch_put(keys=keys, partition_id=PARTITION, fields=fields)
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    got = library.kv_batch_get(keys=keys, partition_id=PARTITION)
    get_s = time.perf_counter() - began
    for name in fields.keys():  # iterating the TensorDict itself yields rows
        if not _same(got[name][-1], fields[name][-1]):
            raise RatchetError(f"{name} came back otherwise")
    del got
    library.kv_clear(keys=keys, partition_id=PARTITION)
    return put_s, get_s


def _same(ours: Any, theirs: Any) -> bool:
    import torch

    return torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else list(ours) == list(theirs)


def _rows(case: Case) -> tuple[list[str], Any]:
    """Keys, and a TensorDict with a row for every sample. The tokens of a prompt, which Ratchet keeps once
    for a group, are dealt out to its samples, so that both move the same bytes."""
    import torch
    from tensordict import NonTensorData, NonTensorStack, TensorDict

    if case.cell:
        fields: dict[str, Any] = {"values": torch.from_numpy(plain_rows(case))}
    else:
        groups = prompt_groups(case)
        samples = [sample for group in groups for sample in group.samples]
        shares = [share for group in groups for share in np.array_split(group.prompt, SAMPLES)]

        def jagged(arrays: list[np.ndarray]) -> torch.Tensor:
            return torch.nested.as_nested_tensor(
                [torch.from_numpy(each) for each in arrays], layout=torch.jagged
            )

        fields = {
            "prompt": jagged(shares),
            "tokens": jagged([sample.tokens for sample in samples]),
            "logprobs": jagged([sample.logprobs for sample in samples]),
            "mask": jagged([sample.mask for sample in samples]),
            "reward": torch.tensor([[sample.reward] for sample in samples], dtype=torch.float64),
            "details": NonTensorStack(
                *(
                    NonTensorData(
                        (sample.finish_reason, sample.text, sample.rewards, sample.correct, sample.seed)
                    )
                    for sample in samples
                )
            ),
        }
    return [f"sample_{number}" for number in range(case.rows)], TensorDict(fields, batch_size=case.rows)
