"""Nodes of a Ray cluster on this machine, each with a number of CPUs that it declares, all on loopback."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rl_training.system.environment_variables import set_environment
from rl_training.system.ray_cluster import connect_to_ray, leave_ray

_NODE = """
import sys
from ray._private import services
services.node_ip_address_from_perspective = lambda address=None: "127.0.0.1"  # as on a machine without a network
from ray.scripts.scripts import main
sys.argv[0] = "ray"
main()
"""
_TOKEN = secrets.token_hex(32)
"""The password of all clusters of this process; Ray reads it once."""
_STARTED = "Ray runtime started"
_STARTS = 10
"""Starts of a node that joins too late: Ray gives it 30 seconds, too little for busy cores."""


@contextmanager
def start_nodes(cpus: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Starts the nodes, the head first, and kills them at the end of the block.

    Within the block, this process has the variables that a connection to the cluster needs, but not RAY_ADDRESS.

    Args:
        cpus: The CPUs that each node declares.

    Yields:
        The address of the cluster, and the process group of each node.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        with (
            set_environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}),
            tempfile.TemporaryDirectory() as folder,
        ):
            for number, count in enumerate(cpus):
                head = ["--head", "--include-dashboard=false", "--port", address.rpartition(":")[2]]
                place = ["--address", address] if number else head
                log = Path(folder) / f"{number}.log"
                nodes.append(start_node([*place, "--num-cpus", str(count)], os.environ, log))
            _wait_until_usable(address)
            yield address, [node.pid for node in nodes]
    finally:
        for node in nodes:
            _kill(node)


def start_node(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Starts `ray start` in a session of its own, again if it joins too late, and returns when it has joined.

    Args:
        arguments: Arguments of `ray start`.
        environment: The variables of the node.
        log: The file for what it prints.
    """
    for _ in range(_STARTS):
        with log.open("wb") as output:
            node = subprocess.Popen(
                [sys.executable, "-c", _NODE, "start", *arguments, "--block", "--disable-usage-stats"],
                env=dict(environment),
                cwd=log.parent,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        while _STARTED not in log.read_text(errors="replace"):
            if node.poll() is not None:
                break
            time.sleep(0.1)
        else:
            return node
        _kill(node)
    raise RuntimeError(f"a node of Ray ended: {log.read_text(errors='replace')[-4_000:]}")


def _wait_until_usable(address: str) -> None:
    """Waits until the scheduler can use each node: it learns of a node some time after the node has joined."""
    ray = connect_to_ray("a cluster of this machine", 1, address)
    try:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = ray.remote(num_cpus=0)(lambda: None)
        for node in ray.nodes():
            there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            while True:
                try:
                    ray.get(there.remote())
                    break
                except ray.exceptions.TaskUnschedulableError:
                    time.sleep(0.1)
    finally:
        leave_ray(ray)


def _kill(node: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()
