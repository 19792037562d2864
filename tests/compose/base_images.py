"""The base images: the official ones, or substitutes made from Debian's packages if no registry can be reached."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from commands import ROOT, TestFailed, run, say
from engine import Engine
from machine_settings import RELEASE, apt_settings, write_pip_settings

DEBIAN = "rl-training-stand-in-debian:test"
STAND_INS = {
    "PYTHON_IMAGE": "rl-training-stand-in-python:test",
    "POSTGRES_IMAGE": "rl-training-stand-in-postgres:test",
}
PULL_SECONDS = 600.0


def base_images(engine: Engine, scratch: Path) -> dict[str, str]:
    """Returns the build arguments that name the base images: none, if the official ones can be pulled."""
    official = re.findall(r"^ARG \w+_IMAGE=(\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.M)
    try:
        for image in official:
            engine.docker("pull", "--quiet", image, timeout=PULL_SECONDS)
    except (TestFailed, subprocess.TimeoutExpired):
        say("no image registry is reached: the base images are stand-ins, made from Debian's packages")
        make_stand_ins(engine, scratch)
        return STAND_INS
    say(f"the base images are {', '.join(official)}")
    return {}


def make_stand_ins(engine: Engine, scratch: Path) -> None:
    """Makes the stand-ins for Python and PostgreSQL."""
    _import_debian(engine, scratch / "debian")
    context = scratch / "stand_ins"
    shutil.copytree(ROOT / "docker" / "stand_ins", context)
    write_pip_settings(context / "settings")
    for argument, image in STAND_INS.items():
        dockerfile = context / f"{argument.removesuffix('_IMAGE').lower()}.Dockerfile"
        say(f"building {image}")
        engine.docker(
            "build", "--quiet", "--file", dockerfile, "--build-arg", f"DEBIAN_IMAGE={DEBIAN}", "--tag", image, context
        )
    shutil.rmtree(context)


def remove_stand_ins(engine: Engine) -> None:
    """Removes them; the official images, which others may use, stay."""
    engine.docker("image", "rm", "--force", *STAND_INS.values(), DEBIAN, check=False)


def _import_debian(engine: Engine, root: Path) -> None:
    say(f"debootstrap of {RELEASE}")
    settings = apt_settings()
    run(["debootstrap", "--variant=minbase", "--include=ca-certificates", RELEASE, root, settings.mirror])
    (root / "etc/apt/sources.list").write_text(settings.sources())
    (root / "etc/apt/apt.conf.d/99machine").write_text(settings.options)
    (root / "etc/dpkg/dpkg.cfg.d/speedup").write_text("force-unsafe-io\n")  # as in the official images
    archive = root.with_suffix(".tar")
    run(["tar", "-C", root, "-cf", archive, "."])
    shutil.rmtree(root)
    engine.docker("import", "--change", 'CMD ["bash"]', archive, DEBIAN)
    archive.unlink()
