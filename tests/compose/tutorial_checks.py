"""The tutorial of ten commands, in one shell, from the wheel to a schedule that a worker in a container keeps."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from pathlib import Path

from commands import ROOT, eventually, require, run, say
from flow_checks import PATIENCE
from services_support import FEWER_STEPS, read_logins
from stack import Stack

from docs.run_blocks import read_commands
from rl_training.tracking.mlflow_store import connect

PAGE = ROOT / "docs" / "tutorials" / "own-environment-in-containers.md"
DEPLOYMENT, MODEL = "retrain-flow/tank", "my_robot"


def check_tutorial(stack: Stack) -> None:
    """Runs the commands of the page as a new user, and the last one, which removes everything.

    Args:
        stack: The services of this repository, which are down. Their images have the layers that a project's have too.
    """
    *commands, remove = read_commands(PAGE, "compose-test")
    require(len(commands) == 10, f"the tutorial promises ten commands and has {len(commands)}")
    folder = stack.scratch / "newcomer"
    folder.mkdir()
    project = Stack(stack.engine, folder, stack.base_images, clone="my-robot")
    make_wheel(stack.clone, folder)
    environment = make_environment(project)
    try:
        say(f"the {len(commands)} commands of {PAGE.name}")
        for line in run_session(commands, project, environment).splitlines():
            if line.startswith("["):
                say(line)
        check_install(project, environment)
        check_training(project)
        run(["bash", "-c", remove], cwd=project.clone, environment=environment)
        left = [*project.left_over(), *project.images()]
        require(not left, f"`{remove}` leaves {left}")
    finally:
        project.down()
        project.remove_images()


def make_wheel(clone: Path, folder: Path) -> None:
    """Builds the wheel of a clone in a folder, as `make wheel` does."""
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, clone])


def make_environment(project: Stack) -> dict[str, str]:
    """Makes a fresh virtual environment, and returns the environment of a shell in which it is active.

    The dependencies are those of this process, by links, and so are their programs: downloading them again would try
    nothing of ours. Of rl_training there is nothing but what the commands install.
    """
    venv, home = project.scratch / "venv", project.scratch / "home"
    home.mkdir()
    run([sys.executable, "-m", "venv", venv])
    links, here = project.scratch / "dependencies", Path(sysconfig.get_path("purelib"))
    links.mkdir()
    for path in here.iterdir():
        if not path.name.startswith(("rl_training", "__editable__")):
            (links / path.name).symlink_to(path)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(f"{links}\n")
    path = project.environment.get("PATH", os.environ["PATH"])
    own = {
        "PATH": os.pathsep.join([str(venv / "bin"), str(Path(sys.executable).parent), path]),
        "PYTHONPATH": "",
        "HOME": str(home),
        "DOCKER_CONFIG": os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker")),
        "COLUMNS": "100",
        "DO_NOT_TRACK": "1",
    }
    return own | {name: value for name, value in project.environment.items() if name != "PATH"}


def run_session(commands: list[str], project: Stack, environment: dict[str, str]) -> str:
    """Runs commands in one shell under `umask 077`; returns what they print, each after its second.

    The ports are the test's own. Between making the project and building its images, the training is made short.
    """
    lines = ["set -eu", "umask 077", "exec 2>&1"]
    for command in commands:
        for port, own in (("5000", "MLFLOW_PORT"), ("4200", "PREFECT_PORT")):
            command = command.replace(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{project.ports[own]}")
        lines += [f'echo "[$SECONDS s] $ "{shlex.quote(command)}', command]
        if command.startswith("cd "):
            changes = [text for old, new in FEWER_STEPS.items() for text in ("-e", f"s/{old}/{new}/")]
            lines.append(shlex.join(["sed", "-i", *changes, "configs/tank.yaml"]))
    return run(["bash", "-c", "\n".join(lines)], cwd=project.scratch, environment=environment)


def check_install(project: Stack, environment: dict[str, str]) -> None:
    """The commands ran from the wheel, and the project keeps it."""
    (wheel,) = project.scratch.glob("*.whl")
    ask = "import rl_training; print(rl_training.__file__)"
    used = run(["python", "-c", ask], cwd=project.scratch, environment=environment)
    require(used.startswith(f"{project.scratch / 'venv'}/"), f"the shell has the rl_training of {used}")
    kept = (project.clone / "wheels" / wheel.name).read_bytes()
    require(kept == wheel.read_bytes(), "the project keeps another wheel than the one that was installed")
    config = (project.clone / "configs" / "tank.yaml").read_text()
    require(all(new in config for new in FEWER_STEPS.values()), "the test's training is as long as a user's")


def check_training(project: Stack) -> None:
    """The worker in the container has trained a champion, and will train again at night."""
    os.environ.update(read_logins(project.clone / "docker" / "secrets"))
    user, registry = project.client(), connect(project.mlflow_uri)
    deployment = user.get(f"/deployments/name/{DEPLOYMENT}")
    of = {"deployments": {"id": {"any_": [deployment["id"]]}}}
    flow_runs = user.post("/flow_runs/filter", of)
    ended = [(run["id"], run["state"]["name"]) for run in flow_runs if run["state"]["type"] != "SCHEDULED"]
    require([state for _, state in ended] == ["Completed"], f"the flow runs of {DEPLOYMENT}: {ended}")
    champion = registry.get_model_version_by_alias(MODEL, "champion")
    tags = registry.get_run(str(champion.run_id)).data.tags
    worker = project.engine.docker("inspect", "--format", "{{.Config.Hostname}}", project.container("worker")).strip()
    trained = (tags.get("prefect.flow_run_id"), tags.get("host"))
    require(trained == (ended[0][0], worker), f"the champion was trained by flow run and host {trained}")
    schedules = [(each["schedule"].get("cron"), each["active"]) for each in deployment["schedules"]]
    require(schedules == [("0 3 * * *", True)], f"the schedules of {DEPLOYMENT}: {schedules}")

    def next_times() -> list[str]:
        due = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
        return [run["expected_start_time"] for run in user.post("/flow_runs/filter", of | due)]

    times = eventually(next_times, PATIENCE, f"Prefect has flow runs of {DEPLOYMENT} for the next nights")
    require(all("T03:00:00" in time for time in times), f"the next flow runs are due at {times}")
