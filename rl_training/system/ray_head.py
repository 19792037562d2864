"""A Ray cluster of this machine alone, on loopback, which ends when the process that started it ends.

`ray_cluster` runs this module as a program of its own, in a session of its own: a signal to the process group of a
training then leaves Ray alone, and the training can still save its environments. Ray itself can't be kept to loopback
by an argument on Linux: it replaces 127.0.0.1 by an address that other machines reach.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile


def keep_to_loopback(keep: bool = True) -> None:
    """Sets whether Ray uses 127.0.0.1 as the address of this process and of what it starts, as on other systems."""
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = not keep


def main() -> None:
    """Starts the cluster, prints its address, and ends it when standard input ends."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray

    keep_to_loopback()
    # Ray leaves its folder behind, and lets every user write to it. On macOS the usual place is too long for a socket.
    place = os.environ.get("RAY_TMPDIR") or ("/tmp" if sys.platform == "darwin" else None)
    with tempfile.TemporaryDirectory(prefix="rl-", dir=place, ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            num_cpus=int(sys.argv[1]),
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=f"{folder}/r",  # everybody may write to this folder, but not reach it
            _system_config={"enable_worker_prestart": False, "prestart_worker_first_driver": False},
        )
        print(f"address={ray.get_runtime_context().gcs_address}", flush=True)
        sys.stdin.read()
        ray.shutdown()
