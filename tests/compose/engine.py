"""A container engine: the machine's, or a temporary one from Debian's packages that leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commands import TestFailed, eventually, run, say
from machine_settings import apt_settings

NEXT_RELEASE = "trixie"
"""The first Debian release with Compose v2, BuildKit's plugin and an engine that has both image stores."""

PACKAGES = ("docker.io", "containerd", "docker-cli", "docker-compose", "docker-buildx")
NEEDED = ("debootstrap", "runc", "iptables", "docker-init")
INSTALL = "apt-get install --no-install-recommends docker.io debootstrap"
STORES = ("containerd", "classic")
CHAINS = {"filter": ("INPUT", "FORWARD", "OUTPUT"), "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")}
NO_RULES = "".join(
    f"*{table}\n" + "".join(f":{chain} ACCEPT [0:0]\n" for chain in chains) + "COMMIT\n"
    for table, chains in CHAINS.items()
)
"""For iptables-restore, which leaves a table alone that its input does not name, as that of a machine without rules."""


class Engine:
    """An engine that answers, with Compose v2.

    Args:
        environment: What its clients need.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def docker(
        self, *arguments: str | Path, check: bool = True, timeout: float = 3600.0, text: str | None = None
    ) -> str:
        """Runs `docker ARGUMENTS` and returns what it prints."""
        return run(["docker", *arguments], environment=self.environment, check=check, timeout=timeout, text=text)

    @property
    def store(self) -> str:
        """The image store: `containerd` or `classic`."""
        status = self.docker("info", "--format", "{{json .DriverStatus}}")
        return "containerd" if "io.containerd.snapshotter" in status else "classic"

    @property
    def gateway(self) -> str:
        """This machine's address for containers."""
        form = "{{(index .IPAM.Config 0).Gateway}}"
        return self.docker("network", "inspect", "bridge", "--format", form).strip()

    def versions(self) -> dict[str, str]:
        """The versions of engine, Compose and BuildKit's plugin."""
        return {
            "engine": self.docker("version", "--format", "{{.Server.Version}}").strip(),
            "compose": self.docker("compose", "version", "--short").strip(),
            "buildx": self.docker("buildx", "version").split()[1],
        }


def machines_engine() -> Engine | None:
    """The engine of this machine, if it answers and has Compose v2 and BuildKit's plugin."""
    for question in (["version"], ["compose", "version"], ["buildx", "version"]):
        try:
            run(["docker", *question], timeout=60)
        except (TestFailed, OSError, subprocess.TimeoutExpired):
            return None
    return Engine({})


@contextmanager
def engine(scratch: Path, store: str | None) -> Iterator[Engine]:
    """An engine for the length of the block.

    Args:
        scratch: A new folder for what an engine of the test's own needs.
        store: The image store that is wanted; by default the machine's engine's, or `containerd`.

    Raises:
        TestFailed: There is no engine with that store, and none can be started.
    """
    there = machines_engine()
    if there is None:
        with started_engine(scratch, store or STORES[0]) as own:
            yield own
        return
    if store not in (None, there.store):
        raise TestFailed(f"the engine of this machine has the {there.store} image store, and not {store}")
    say(f"the engine of this machine, with the {there.store} image store")
    yield there


@contextmanager
def started_engine(scratch: Path, store: str) -> Iterator[Engine]:
    """An engine that runs for the length of the block, with all of its data under `scratch`."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        raise TestFailed(f"starting an engine takes root, and {', '.join(NEEDED)}; as root: {INSTALL}")
    programs = _unpack_programs(scratch / "programs")
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    socket = scratch / "engine.sock"
    environment = {"PATH": path, "DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": str(scratch / "config")}
    settings = scratch / "daemon.json"
    settings.write_text(json.dumps({"features": {"containerd-snapshotter": store == "containerd"}}))
    command = ["dockerd", f"--config-file={settings}", f"--data-root={scratch / 'data'}", "--ip6tables=false"]
    command += [f"--exec-root={scratch / 'exec'}", f"--pidfile={scratch / 'pid'}", f"--host=unix://{socket}"]
    with _network_as_before(), (scratch / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
        )
        own = Engine(environment)
        try:
            _wait_until_it_answers(own, process, scratch / "engine.log")
            say(f"an engine of the test's own, with the {own.store} image store")
            yield own
        finally:
            _stop(process)
            _unmount(scratch)


def _unpack_programs(folder: Path) -> list[Path]:
    """Fetches and unpacks the next release's packages, without installing them; returns the folders for PATH."""
    apt, settings = folder / "apt", apt_settings()
    for part in ("etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "state/lists/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "cache/archives/partial").mkdir(parents=True)
    (apt / "status").touch()
    (apt / "etc/sources.list").write_text(f"deb {settings.mirror} {NEXT_RELEASE} main\n")
    (apt / "apt.conf").write_text(
        f'Dir "{apt}"; Dir::Etc "etc"; Dir::State "state"; Dir::State::status "{apt / "status"}"; Dir::Cache "cache";\n'
        'Dir::Etc::trusted "/etc/apt/trusted.gpg"; Dir::Etc::trustedparts "/etc/apt/trusted.gpg.d";\n'
        'APT::Sandbox::User "root"; Acquire::Languages "none";\n' + settings.options
    )
    environment = {"APT_CONFIG": str(apt / "apt.conf")}
    run(["apt-get", "update", "--quiet"], environment=environment)
    run(["apt-get", "download", "--quiet", *PACKAGES], environment=environment, cwd=folder)
    for package in folder.glob("*.deb"):
        run(["dpkg", "-x", package, folder / "root"])
        package.unlink()
    plugins = folder.parent / "config" / "cli-plugins"
    shutil.copytree(folder / "root/usr/libexec/docker/cli-plugins", plugins)
    return [folder / "root/usr/bin", folder / "root/usr/sbin"]


def _wait_until_it_answers(own: Engine, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise TestFailed(f"the engine did not start:\n{log.read_text(errors='replace')[-4000:]}")
        return own.docker("version", check=False) != "" and "Server:" in own.docker("version", check=False)

    eventually(answers, 180, "the engine answers")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unmount(folder: Path) -> None:
    """Unmounts whatever an engine has left mounted below a folder."""
    for _ in range(3):
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
            run(["umount", "--lazy", mount], check=False)
        time.sleep(0.5)


@contextmanager
def _network_as_before() -> Iterator[None]:
    """Takes back what an engine does to the machine's network: rules, forwarding, its bridge."""
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    rules, forwards, bridges = run(["iptables-save"]), forwarding.read_text(), _bridges()
    try:
        yield
    finally:
        run(["iptables-restore"], text=NO_RULES + rules, check=False)
        forwarding.write_text(forwards)
        for bridge in _bridges() - bridges:
            run(["ip", "link", "delete", bridge], check=False)


def _bridges() -> set[str]:
    return {path.parent.name for path in Path("/sys/class/net").glob("*/bridge")}
