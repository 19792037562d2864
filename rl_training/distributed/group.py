"""A group of processes that exchange arrays by `torch.distributed`: gloo for memory, NCCL for GPUs.

Nothing is pickled: arrays travel as numbers, and everything else as bytes that the caller has written.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rl_training.distributed.torchrun import Place
from rl_training.errors import ConfigError, RankFailed, one_line
from rl_training.system.environment_variables import set_environment

PATIENCE = timedelta(days=7)
"""How long a rank waits for the others, which may evaluate or save meanwhile. A process that dies closes its
connections, which ends all waits for it at once."""
MEET_SECONDS = timedelta(minutes=10)
"""How long the processes of `torchrun` wait for each other at the start."""

INTERFACE = "GLOO_SOCKET_IFNAME"

P = ParamSpec("P")
T = TypeVar("T")


class Group:
    """The connections of this process to the other ranks.

    Args:
        store: Where the ranks meet.
        rank: Number of this rank.
        ranks: Number of ranks.
        local_rank: Number of this rank on its machine, which is the number of its GPU.
        loopback: Whether all ranks are on this machine, so that gloo listens on the loopback interface alone, unless
            `GLOO_SOCKET_IFNAME` names another one.
    """

    def __init__(self, store: Any, rank: int, ranks: int, local_rank: int, *, loopback: bool) -> None:
        self.rank, self.ranks, self.local_rank = rank, ranks, local_rank
        self._store = store
        self._gpus: Any = None
        hook = sys.excepthook
        try:
            with set_environment(_choose_interface() if loopback else {}):
                self._call(dist.init_process_group, "gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
        finally:
            sys.excepthook = hook  # torch's would put the rank before each line of a traceback, also after training

    def choose_gpu(self, device: torch.device) -> torch.device:
        """Returns the GPU of this rank if the chosen device is a GPU, else that device.

        Raises:
            ConfigError: There is no GPU for this rank, or only some ranks have chosen GPUs.
            RankFailed: Another rank has failed or is gone.
        """
        available = torch.cuda.device_count() if device.type == "cuda" else 0
        chosen_R = self.gather(np.array([device.type == "cuda", available > self.local_rank]))
        if not chosen_R.any():
            return device
        if not chosen_R.all():
            raise ConfigError(
                f"device: got cuda with ranks: {self.ranks}, expected a GPU for each rank on its machine, and "
                f"{int(chosen_R.all(axis=1).sum())} ranks have one; set device: cpu, or start fewer ranks"
            )
        own = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(own)
        self._gpus = self._call(dist.new_group, backend="nccl")
        return own

    def sum(self, vector: Tensor) -> None:
        """Replaces a vector by the sum of all ranks' vectors, which is the same to the last bit on all ranks.

        Raises:
            RankFailed: Another rank has failed or is gone.
        """
        self._call(dist.all_reduce, vector, group=self._gpus if vector.is_cuda else None)

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns the arrays of all ranks, which have the same shape and dtype, stacked by rank: [R, ...].

        Raises:
            RankFailed: Another rank has failed or is gone.
        """
        own = torch.from_numpy(np.ascontiguousarray(array))
        everyone = torch.empty((self.ranks, *own.shape), dtype=own.dtype)
        self._call(dist.all_gather, list(everyone), own)
        return everyone.numpy()

    def send_to_all(self, data: bytes | None) -> bytes:
        """Returns the bytes that rank 0 passes; the other ranks pass None.

        Raises:
            RankFailed: Another rank has failed or is gone.
        """
        size = torch.tensor([0 if data is None else len(data)])
        self._call(dist.broadcast, size, 0)
        buffer = _to_tensor(data) if data is not None else torch.empty(int(size), dtype=torch.uint8)
        self._call(dist.broadcast, buffer, 0)
        return data if data is not None else buffer.numpy().tobytes()

    def collect(self, data: bytes) -> list[bytes]:
        """Returns the bytes that each rank passes, by rank, on rank 0; an empty list on the others.

        Raises:
            RankFailed: Another rank has failed or is gone.
        """
        sizes_R = self.gather(np.array([len(data)]))[:, 0].tolist()
        if self.rank:
            if data:
                self._call(dist.send, _to_tensor(data), 0)
            return []
        each = [data]
        for rank, size in enumerate(sizes_R[1:], start=1):
            buffer = torch.empty(size, dtype=torch.uint8)
            if size:
                self._call(dist.recv, buffer, rank)
            each.append(buffer.numpy().tobytes())
        return each

    def report(self, fault: str) -> None:
        """Tells rank 0 why this rank ends, in one line."""
        self._store.set(f"fault-{self.rank}", fault)

    def close(self) -> None:
        """Closes the connections, which ends the waits of the other ranks."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:  # what gloo and NCCL raise if a connection is closed
            raise RankFailed(self._explain(error)) from None

    def _explain(self, error: RuntimeError) -> str:
        advice = "the run ends at its last checkpoint, from which it can be resumed"
        for rank in range(1, self.ranks):
            name = f"fault-{rank}"
            if rank != self.rank and self._store.check([name]):
                return f"rank {rank} of {self.ranks} failed: {self._store.get(name).decode()}"
        reason = one_line(error).rpartition("] ")[2].partition(". This is typically")[0]
        return f"another of the {self.ranks} ranks has died ({reason}); {advice}"


def open_store(path: str, ranks: int) -> Any:
    """Returns the store in a file through which the ranks of one machine meet, which no other user may read."""
    return dist.FileStore(path, ranks)  # type: ignore[attr-defined]


def join_torchrun(place: Place) -> Group:
    """Meets the other processes that `torchrun` has started.

    Args:
        place: The place of this process.
    """
    found = dist.rendezvous("env://", timeout=MEET_SECONDS)  # type: ignore[attr-defined]
    store, rank, ranks = next(iter(found))
    return Group(store, rank, ranks, place.local_rank, loopback=place.on_loopback)


def _choose_interface() -> dict[str, str]:
    """Returns the variable with which gloo connects by the loopback interface; none if the user has set it."""
    names = [name for _, name in socket.if_nameindex()]
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    return {} if loopback is None or INTERFACE in os.environ else {INTERFACE: loopback}


def _to_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
