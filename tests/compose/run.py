"""`make compose-test`: docker-compose.yml with a real engine, from the build of its images to the last container gone.

    make compose-test
    make compose-test STORE=classic             # the engine's older image store
    make compose-starts                         # instead, 10 starts while other processes keep every core busy

The result, with times and versions, goes to benchmarks/results/compose-STORE.json or compose-starts.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from backup_checks import check_backup
from base_images import base_images, remove_stand_ins
from bucket_checks import check_bucket
from commands import TestFailed, phase, require, say
from docker_pool_checks import check_docker_pool
from engine import STORES, Engine, engine
from flow_checks import Flows, check_commit, check_flows, check_links
from kill_checks import check_graceful_stop, check_kills
from network_checks import check_database, check_pages
from remote_checks import check_remote
from stack import Stack
from starts import measure_starts
from tutorial_checks import check_tutorial

from benchmarks.harness import collect_provenance, count_cpus, write_json


def main() -> int:
    """Runs everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, help="the image store; by default that of the engine")
    parser.add_argument("--starts", type=int, default=0, help="measure so many starts beside busy processes instead")
    parser.add_argument("--busy", type=int, default=count_cpus(), help="how many busy processes")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is removed then, too
    scratch = Path(tempfile.mkdtemp(prefix="rl-training-compose-"))
    seconds: dict[str, float] = {}
    result: dict[str, Any] = {**collect_provenance(), "load_at_start": round(os.getloadavg()[0], 1), "seconds": seconds}
    try:
        with phase("everything", seconds), engine(scratch, given.store) as there:
            result |= {"image_store": there.store, "engine": there.versions()}
            _test(there, scratch, given, result)
        name = "compose-starts" if given.starts else f"compose-{result['image_store']}"
        say(f"written: {write_json(name, result).name}")
    except TestFailed as failed:
        say(f"FAILED: {failed}")
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if result.get("starts", {}).get("good", given.starts) == given.starts else 1


def _test(there: Engine, scratch: Path, given: argparse.Namespace, result: dict[str, Any]) -> None:
    seconds = result["seconds"]
    with phase("base images", seconds):
        bases = base_images(there, scratch)
        result["base_images"] = "stand-ins from Debian's packages" if bases else "official"
    stack = Stack(there, scratch, bases)
    try:
        with phase("build and start", seconds):
            stack.make_clone()
            stack.up("--build")
        result["image_megabytes"] = _sizes(stack)
        if given.starts:
            stack.down()
            with phase("starts", seconds):
                result["starts"] = measure_starts(stack, given.starts, given.busy)
        else:
            _check(stack, seconds)
    finally:
        with phase("removal", seconds):
            stack.down()
            stack.remove_images()
            if bases:
                remove_stand_ins(there)
    require(not stack.left_over() and not stack.images(), f"left over: {stack.left_over()}, {stack.images()}")


def _check(stack: Stack, seconds: dict[str, float]) -> None:
    with phase("pages and database", seconds):
        check_pages(stack)
        check_database(stack)
    flows = Flows(stack)
    with phase("flows", seconds):
        check_flows(flows)
    check_links(flows)
    check_commit(flows)
    with phase("graceful stop", seconds):
        check_graceful_stop(flows)
    with phase("kills", seconds):
        check_kills(flows, seconds)
    check_links(flows)
    with phase("HTTPS and a worker elsewhere", seconds):
        user = check_remote(flows)
    with phase("a container for each flow run", seconds):
        check_docker_pool(flows, user)
    with phase("backup and restore", seconds):
        check_backup(flows)
    stack.down()
    with phase("artifacts in a bucket", seconds):
        check_bucket(stack)
    stack.down()
    with phase("tutorial", seconds):
        check_tutorial(stack)


def _sizes(stack: Stack) -> dict[str, int]:
    form = "{{.Size}}"
    return {
        image.split(":")[0]: int(stack.engine.docker("image", "inspect", "--format", form, image)) // 1_000_000
        for image in stack.images()
    }


if __name__ == "__main__":
    sys.exit(main())
