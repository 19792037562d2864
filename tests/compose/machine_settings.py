"""Package mirrors, certificates and pip settings of this machine: read when the test runs, written to scratch alone."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from commands import ROOT, TestFailed, run

RELEASE = "bookworm"
"""The Debian release of the images in docker/Dockerfile."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class AptSettings:
    """The mirror of Debian's packages of this machine, and apt's options for the mirror."""

    mirror: str
    security_mirror: str | None
    options: str
    """For a file in /etc/apt/apt.conf.d."""

    def sources(self) -> str:
        """Returns a sources.list of the images' release."""
        lines = [f"deb {self.mirror} {suite} main" for suite in (RELEASE, f"{RELEASE}-updates")]
        if self.security_mirror is not None:
            lines.append(f"deb {self.security_mirror} {RELEASE}-security main")
        return "\n".join(lines) + "\n"


def apt_settings() -> AptSettings:
    """Asks apt.

    Raises:
        TestFailed: This machine has no mirror of Debian.
    """
    listed = run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"])
    addresses = dict(line.rsplit("|", 1) for line in listed.splitlines())
    if "Debian|Debian" not in addresses:
        raise TestFailed("apt knows no mirror of Debian; run `apt-get update`, or use a machine with Debian")
    wanted = re.compile(r"^Acquire::(Check-|https?::|Retries)")
    options = [line for line in run(["apt-config", "dump", "Acquire"]).splitlines() if wanted.match(line)]
    return AptSettings(
        addresses["Debian|Debian"], addresses.get("Debian|Debian-Security"), "".join(f"{line}\n" for line in options)
    )


def write_pip_settings(folder: Path) -> None:
    """Writes `pip.conf`, `ca-certificates.crt` and `wheels/`, so that pip in an image gets what pip gets here.

    Of this machine's folders of wheels, those that constraints.txt names are taken: the CPU build of torch, where there
    is one, wins over the default build of the same version, and saves some gigabytes.
    """
    (folder / "wheels").mkdir(parents=True)
    shutil.copy(CERTIFICATES, folder / CERTIFICATES.name)
    listed = run(["python3", "-m", "pip", "config", "list"])
    given = {key.rpartition(".")[2]: value for key, value in re.findall(r"^(\S+?)='(.*)'$", listed, re.M)}
    lines = ["[global]", f"cert = {CERTIFICATES}", "find-links = /opt/wheels", "timeout = 180"]
    for key in ("index-url", "extra-index-url", "trusted-host", "proxy"):
        remote = [word for word in given.get(key, "").split() if not word.startswith("file:")]
        lines += [f"{key} = {' '.join(remote)}"] if remote else []
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    pinned = {line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for place in given.get("find-links", "").split():
        for wheel in Path(place).glob("*.whl"):
            name, version = wheel.name.split("-")[:2]
            if f"{name}=={version.split('+')[0]}" in pinned and "+cu" not in version:
                shutil.copy(wheel, folder / "wheels")
