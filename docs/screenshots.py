"""Pictures of MLflow's and Prefect's pages, of real runs: `make screenshots`.

Starts both servers and a worker here, trains PPO and DQN on CartPole, opens the pages in a Chromium without a
window, waits until each shows what its picture is there for, and writes `docs/images/`.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from rl_training.tracking.mlflow_store import connect

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from playwright.sync_api import Page

IMAGES = Path(__file__).parent / "images"
BIN = Path(sys.executable).parent

BROWSER_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PAGE_SECONDS = 120.0
"""How long a page may take to show what it shall show."""
START_SECONDS = 240.0
MOST_KILOBYTES = 300

# What a user clicks once: MLflow's pages for training (and not for language models), its assistant closed.
MLFLOW_CHOICES = """
localStorage.setItem("mlflow.workflowType_v1", '"machine_learning"');
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
"""


class Services:
    """Both servers and a worker, with everything that they write in one folder."""

    def __init__(self, home: Path, mlflow_port: int, prefect_port: int) -> None:
        self.home = home
        self.mlflow, self.prefect = f"http://127.0.0.1:{mlflow_port}", f"http://127.0.0.1:{prefect_port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
        self.environment = kept | {
            "RL_TRAINING_HOME": str(home),
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_API_URL": f"{self.prefect}/api",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "MLFLOW_TRACKING_URI": self.mlflow,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "DO_NOT_TRACK": "1",
        }

    def client(self) -> MlflowClient:
        """Returns a client of the MLflow server."""
        return connect(self.mlflow)

    def experiment(self) -> str:
        """Returns the id of the experiment that both runs are in."""
        experiment = self.client().get_experiment_by_name("cartpole")
        assert experiment is not None
        return str(experiment.experiment_id)

    def run(self, program: str, *arguments: str) -> None:
        """Runs a command as a user does, to its end."""
        subprocess.run([BIN / program, *arguments], env=self.environment, cwd=self.home, check=True)

    @contextmanager
    def running(self, program: str, *arguments: str) -> Iterator[None]:
        """Runs a program as long as the block."""
        with (self.home / f"{program}-{arguments[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                ["env", "--default-signal=INT", BIN / program, *arguments],
                env=self.environment,
                cwd=self.home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def servers(home: Path) -> Iterator[Services]:
    """Both servers, which answer when the block begins."""
    services = Services(home, *free_ports(2))
    with ExitStack() as stack:
        database = ["--backend-store-uri", f"sqlite:///{home}/mlflow.db"]
        artifacts = ["--artifacts-destination", str(home / "served"), "--workers", "1"]
        host, port = services.mlflow.removeprefix("http://").split(":")
        stack.enter_context(services.running("mlflow", "server", "--host", host, "--port", port, *database, *artifacts))
        host, port = services.prefect.removeprefix("http://").split(":")
        stack.enter_context(services.running("prefect", "server", "start", "--host", host, "--port", port))
        wait_for(f"{services.mlflow}/health")
        wait_for(f"{services.prefect}/api/health")
        yield services


def make_runs(services: Services) -> None:
    """A PPO run through the deployed flow, and a DQN run from the command line beside it."""
    services.run("prefect", "deployment", "run", "train-flow/default", "--watch")
    services.run("rl-training", "train", "--config", "dqn/cartpole")


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a browser that has never been used."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium on the PATH (Debian's package is `chromium`); or name it in CHROMIUM")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium, headless=True, args=BROWSER_FLAGS
        )
        context.add_init_script(MLFLOW_CHOICES)
        page = context.new_page()
        page.set_default_timeout(1000 * PAGE_SECONDS)
        yield page
        context.close()


def mlflow_run(page: Page, services: Services) -> None:
    """The page of the run that the flow made: description with curve, histogram and film, metrics, checkpoints."""
    client, experiment = services.client(), services.experiment()
    (run,) = client.search_runs([experiment], "tags.algo = 'ppo'")
    page.set_viewport_size({"width": 1440, "height": 1320})
    page.goto(f"{services.mlflow}/#/experiments/{experiment}/runs/{run.info.run_id}")
    page.get_by_text("Show more").click()
    for name in ("learning_curve.png", "evaluation_histogram.png", "evaluation_episode.gif"):
        picture = page.locator(f"img[src*='{name}']")
        picture.wait_for()
        page.wait_for_function("picture => picture.naturalWidth > 0", arg=picture.element_handle())
    page.get_by_text("eval/return_mean", exact=True).wait_for()
    page.get_by_text("step 100,000 of").first.wait_for()


def mlflow_compare(page: Page, services: Services) -> None:
    """Both runs' returns in one chart each, over environment steps."""
    page.set_viewport_size({"width": 1440, "height": 1100})
    page.goto(f"{services.mlflow}/#/experiments/{services.experiment()}/runs?compareRunsMode=CHART")
    page.get_by_placeholder("Search metric charts").fill("(eval|rollout).*_mean")
    page.wait_for_function(
        """() => {
            const charts = [...document.querySelectorAll(".js-plotly-plot")];
            const curves = chart => new Set(chart.data.filter(c => c.x && c.x.length > 5).map(c => c.name));
            const overSteps = chart => chart.layout.xaxis.title.text === "Step";
            return charts.length === 4 && charts.every(chart => overSteps(chart) && curves(chart).size === 2);
        }"""
    )


def mlflow_models(page: Page, services: Services) -> None:
    """Checkpoints of both runs with their evaluation, and the registered version beside the one it was made of."""
    page.set_viewport_size({"width": 1800, "height": 820})
    page.goto(f"{services.mlflow}/#/experiments/{services.experiment()}/models")
    page.get_by_role("columnheader", name="eval/return_mean").wait_for()
    page.get_by_text("step 100,000 of CartPole-v1-ppo-seed0").wait_for()
    page.get_by_text("step 50,000 of CartPole-v1-dqn-seed0").wait_for()


def prefect_flow_run(page: Page, services: Services) -> None:
    """The flow run: its tasks in time, each with its artifacts, and the artifacts as cards."""
    page.set_viewport_size({"width": 1280, "height": 1100})
    page.goto(f"{services.prefect}/runs")
    page.get_by_text("Completed").first.wait_for()
    page.locator("a[href*='/runs/flow-run/']").first.click()
    page.get_by_text("Artifacts", exact=True).first.click()
    for artifact in ("evaluations", "training-progress", "training-report", "promotion-verdict"):
        page.get_by_text(artifact, exact=True).first.wait_for()
    time.sleep(5)  # the tasks are drawn on a canvas, which says nothing of when it is done


def prefect_verdict(page: Page, services: Services) -> None:
    """The verdict of the gate in Markdown, to which the flow run's page leads."""
    page.set_viewport_size({"width": 1280, "height": 820})
    page.get_by_text("promotion-verdict", exact=True).first.click()
    page.get_by_text("there is no champion yet").wait_for()


def prefect_deployments(page: Page, services: Services) -> None:
    """The deployments: a default of each flow, and one for each shipped task."""
    page.set_viewport_size({"width": 1280, "height": 820})
    page.goto(f"{services.prefect}/deployments")
    page.get_by_text("retrain-flow").first.wait_for()
    page.get_by_text("dqn-cartpole").first.wait_for()
    page.get_by_text("Ready", exact=True).nth(4).wait_for()  # there is a worker


PICTURES = (mlflow_run, mlflow_compare, mlflow_models, prefect_flow_run, prefect_verdict, prefect_deployments)
"""In this order; each leaves the page as its picture shall show it, and fails where the page does not show that."""


def save(page: Page, name: str) -> None:
    """Writes what the page shows as a PNG."""
    path = IMAGES / f"{name}.png"
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled")))
    picture.convert("RGB").save(path, optimize=True)
    kilobytes = path.stat().st_size // 1024
    assert kilobytes < MOST_KILOBYTES, f"{path} has {kilobytes} kB, expected less than {MOST_KILOBYTES}"
    print(f"{path}: {kilobytes} kB", file=sys.stderr)


def wait_for(address: str) -> None:
    """Waits until an address answers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    """Makes the runs, unless the home has them, and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="keep the runs here, and use those that are here")
    home = parser.parse_args().home
    with ExitStack() as stack:
        home = Path(home or stack.enter_context(tempfile.TemporaryDirectory())).absolute()
        home.mkdir(parents=True, exist_ok=True)
        services = stack.enter_context(servers(home))
        services.run("rl-training", "deploy")
        stack.enter_context(services.running("rl-training", "worker"))
        ready = home / "ready"
        if not ready.exists():
            make_runs(services)
            ready.touch()
        page = stack.enter_context(browser())
        for picture in PICTURES:
            picture(page, services)
            time.sleep(2)  # what moves into place
            save(page, picture.__name__.replace("_", "-"))


if __name__ == "__main__":
    main()
