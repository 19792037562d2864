"""Rank 0's connection to the other ranks: starts their processes, or meets those that `torchrun` has started.

The ranks that we start are on this machine. They meet in a file of a private directory and exchange on loopback.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.serialization import dump_config
from rl_training.distributed.group import Group, join_torchrun, open_store
from rl_training.distributed.torchrun import find_place, require_ranks
from rl_training.errors import RankFailed
from rl_training.runtime.ranks.orders import Command, Order, give
from rl_training.security.import_guard import make_command
from rl_training.security.secrets import collect_secrets
from rl_training.system.constructor_cleanup import close_on_error, kill_on_close

POLL_SECONDS = 0.05
"""Interval at which rank 0 looks whether the other ranks have started."""
END_SECONDS = 20.0
"""How long the other ranks may take to close their environments."""

_PROGRAM = """import json, sys
from rl_training.runtime.ranks.follower import main
main(*json.loads(sys.argv[1]))"""


class Team:
    """The other ranks, as rank 0 leads them.

    As a context manager, it ends them: in order if the block succeeds between two orders, else by closing the
    connections.

    Args:
        config: The settings of the run.

    Raises:
        ConfigError: `torchrun` has started another number of processes.
        RankFailed: A rank has ended before it began.
    """

    @close_on_error
    def __init__(self, config: PPOConfig) -> None:
        self._opened, self._processes = ExitStack(), list[subprocess.Popen[bytes]]()
        self._waiting = False  # whether the other ranks have obeyed an order and wait for the next one
        require_ranks(config.ranks)
        if (place := find_place()) is not None:
            self.group = join_torchrun(place)
            self._opened.callback(self.group.close)
            assert place.rank == 0
        else:
            self.group = self._start(config)
        self.group.send_to_all(dump_config(config.model_copy(update={"run_dir": None}), redacted=False).encode())

    def _start(self, config: PPOConfig) -> Group:
        folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="rl-training-ranks-"))
        path = str(Path(folder) / "store")
        secrets = json.dumps(collect_secrets(config.model_dump())).encode() + b"\n"
        store = open_store(path, config.ranks)
        for rank in range(1, config.ranks):
            process = kill_on_close(self._opened, _start_process([rank, config.ranks, path]))
            self._processes.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(secrets)
                process.stdin.flush()
        self._await(store)
        group = Group(store, 0, config.ranks, 0, loopback=True)
        self._opened.callback(group.close)
        return group

    def _await(self, store: Any) -> None:
        """Waits until each rank has started."""
        while not store.check([f"started-{rank}" for rank in range(1, len(self._processes) + 1)]):
            for rank, process in enumerate(self._processes, start=1):
                if (code := process.poll()) is not None:
                    raise RankFailed(f"rank {rank} ended with exit code {code} before it began; its output says why")
            time.sleep(POLL_SECONDS)

    @contextmanager
    def ordered(self, command: Command, first: int = 0, second: int = 0) -> Iterator[bool]:
        """Gives an order, in whose block this rank does the same; yields whether another rank was told to stop.

        Raises:
            RankFailed: Another rank has failed or is gone.
        """
        self._waiting = False
        yield give(self.group, Order(command, first, second))
        self._waiting = True

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._opened:
            if not self._waiting:
                return
            with suppress(RankFailed), self.ordered(Command.END):
                deadline = time.monotonic() + END_SECONDS
                for process in self._processes:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))


def _start_process(place: Sequence[Any]) -> subprocess.Popen[bytes]:
    """Starts a process for another rank, which ends when its standard input is closed."""
    return subprocess.Popen(
        make_command(_PROGRAM, json.dumps(place)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
