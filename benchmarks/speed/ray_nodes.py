"""Nodes of a Ray cluster on this machine, each with a number of CPUs that it declares, all on loopback."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_NODE = """
import sys
from ray._private import services
services.node_ip_address_from_perspective = lambda address=None: "127.0.0.1"  # as on a machine without a network
from ray.scripts.scripts import main
sys.argv[0] = "ray"
main()
"""
_READY = b"--block"
"""Words of the line that a node prints once it can be used."""


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
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for number, count in enumerate(cpus):
            place = (
                ["--address", address]
                if number
                else ["--head", "--include-dashboard=false", "--port", address.rpartition(":")[2]]
            )
            nodes.append(_start([*place, "--num-cpus", str(count)]))
        yield address, [node.pid for node in nodes]
    finally:
        for node in nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
            if node.stdout is not None:
                node.stdout.close()
        del os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    options = ["--block", "--disable-usage-stats"]
    node = subprocess.Popen(
        [sys.executable, "-c", _NODE, "start", *arguments, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert node.stdout is not None
    said = []
    for line in node.stdout:
        said.append(line.decode(errors="replace"))
        if _READY in line:
            return node
    raise RuntimeError(f"a node of Ray ended: {''.join(said)}")
