"""Links, files, make targets, commands and settings that the README and the documentation name exist."""

import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml
from cyclopts import CycloptsError
from waiting import LIMIT

from docs.run_blocks import PAGES as RUN_PAGES
from docs.run_blocks import blocks as page_blocks
from rl_training.cli.app import app
from rl_training.experiment.loading import config_from_mapping

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[str]:
    """Returns each command of a program in the pages' code blocks, without its comment."""
    lines = [
        line.split("  #")[0].strip()
        for page in PAGES
        for block in page_blocks(page)
        if block.language in ("bash", "sh", "console")
        for line in block.code.splitlines()
    ]
    return sorted({re.sub(r" > .*", "", line) for line in lines if line.startswith(program + " ")})


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, fragment = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert linked.is_relative_to(ROOT)
        if line := re.fullmatch(r"L(\d+)(?:-L(\d+))?", fragment):
            last = len(linked.read_text(encoding="utf-8").splitlines())
            assert all(int(number) <= last for number in line.groups() if number)
        elif fragment:
            assert fragment in anchors(linked), f"{page.name} links to {target}"


def test_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {command.split()[1] for command in commands("make")}
    assert {"train", "test", "check"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_blocks_that_are_not_run_with_the_pages_name_a_make_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    marked = [block for page in RUN_PAGES for block in page_blocks(page) if block.target]
    assert marked
    assert "docs-test" not in {block.target for block in marked}  # it runs the blocks without a mark alone
    assert {block.target for block in marked} <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in RUN_PAGES:  # a mark that no block follows would be overlooked
        found = page_blocks(page)
        quoted = sum(block.code.count("<!-- run by:") for block in found)
        marks = page.read_text(encoding="utf-8").count("<!-- run by:") - quoted
        assert marks == sum(block.target is not None for block in found), page


def test_a_page_is_a_session_of_shell_and_python_blocks(tmp_path):
    page = tmp_path / "page.md"
    fence = "```"
    page.write_text(
        f'{fence}yaml title="my.yaml"\nkey: 1\n{fence}\n'
        f"{fence}bash\nexport NAME=value\n{fence}\n"
        f'{fence}python\nimport os\nread = os.environ["NAME"] + open("my.yaml").read()\n{fence}\n'
        f'{fence}python\nopen("out", "w").write(read)\n{fence}\n'
        f"<!-- run by: make gpu-test -->\n{fence}bash\nexit 1\n{fence}\n"
        f"{fence}bash\ngrep absent my.yaml\n{fence}\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "run_blocks.py"), "--in-session", str(page)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "out").read_text() == "valuekey: 1\n"
    assert ended.returncode == 1
    assert ended.stdout.strip() == f"{page}:18: exit code 1"


@pytest.mark.slow
def test_gpu_tests_end_with_a_line_where_no_gpu_is_seen():
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/gpu"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 2
    assert re.fullmatch(r"Exit: make gpu-test needs a GPU that torch sees; torch \S+ sees none\n", ended.stderr)


def test_ci_begins_with_the_readmes_test_command():
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    steps = re.findall(r"(?:^ *|then )make ([\w-]+)", text, re.MULTILINE)
    if_time = ["slow-test", "extras-test", "compose-test", "docs-test"]
    assert steps == ["test", "check", "services-test", *if_time]
    assert " ".join(re.findall(r'fits \d+ "?([\w -]+)"?; then', text)).split() == if_time
    assert "make test" in commands("make")


@pytest.mark.parametrize("line", commands("rl-training"))
def test_commands_are_understood(line):
    try:
        app.parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        pytest.fail(f"{line}: {error}")


def test_readmes_python_uses_what_is_offered():
    (code,) = blocks(README, "python")
    (names,) = re.findall(r"^from rl_training import (.+)$", code, re.MULTILINE)
    import rl_training

    assert set(names.split(", ")) <= set(rl_training.__all__)
    compile(code, "README.md", "exec")


def test_gradients_of_a_custom_algorithm_are_the_slope_of_the_loss_and_learn():
    page = (ROOT / "docs" / "custom-algorithm.md").read_text(encoding="utf-8")
    offered: dict = {}
    for code in blocks(page.partition("### Networks and gradients")[2], "python"):
        exec(compile(code, "custom-algorithm.md", "exec"), offered)
    observations = np.random.default_rng(0).uniform(-1.0, 1.0, (64, 3)).astype(np.float32)
    targets = observations[:, 0] - 0.5 * observations[:, 1]
    for update, parameters in ((offered["update"], offered["parameters"]), (offered["update_own"], offered["own"])):
        before = parameters.vector.clone()
        loss = update(observations, targets)
        gradient = parameters.gradient.clone()
        assert gradient.norm() > 0.1
        parameters.vector.copy_(before + 1e-3 * gradient / gradient.norm())
        slope = (update(observations, targets) - loss) / 1e-3
        assert slope == pytest.approx(gradient.norm().item(), rel=0.02)  # the loss grows along it as fast as it says
        for _ in range(200):
            loss = update(observations, targets)
        assert loss < 0.01 * targets.var()


def test_readmes_config_is_valid():
    (text,) = blocks(README, 'yaml title="my.yaml"')
    assert config_from_mapping(yaml.safe_load(text.replace("1e-3", "0.001"))).total_timesteps == 100_000


def test_the_tutorials_deployment_fits_into_the_project(tmp_path):
    from rl_training.services.prefect_yaml import read_prefect_yaml

    page = (ROOT / "docs" / "tutorials" / "nightly-retraining.md").read_text(encoding="utf-8")
    (entry,) = blocks(page, "yaml")
    file = tmp_path / "prefect.yaml"
    file.write_text((ROOT / "prefect.yaml").read_text(encoding="utf-8") + "\n" + entry, encoding="utf-8")
    added = read_prefect_yaml(file, datetime(2026, 6, 1, tzinfo=UTC))[-1]
    assert added.name == "retrain-flow/pendulum"
    assert f"{added.schedules[0].times[0]:%d %H:%M %Z}" == "01 02:30 CEST"
    assert added.warnings == ()


def test_the_python_page_describes_every_public_name():
    import rl_training

    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^::: rl_training\.(\w+)$", page, re.MULTILINE)) | set(
        re.findall(r"`(\w+Config)`", page)
    )
    assert described == set(rl_training.__all__) - {"__version__"}


def test_what_may_change_on_resume_is_what_the_page_says():
    from rl_training.config.reference import update_page

    page = (ROOT / "docs" / "resume.md").read_text(encoding="utf-8")
    assert update_page(page) == page, "run: python -m rl_training.config.reference docs/resume.md"
    assert "| `callbacks`, `device`, `threads`, `ranks` | may change, and makes the run inexact | may change |" in page
    assert "| `total_timesteps` | may grow | may change | schedules are computed over the larger total |" in page
    assert "| all others, and the environment's observation and action space | must be equal | may change | " in page


def test_no_page_sends_to_a_registry():
    text = "\n".join(page.read_text(encoding="utf-8") for page in [*PAGES, ROOT / "Makefile", ROOT / "constraints.txt"])
    assert re.findall(r"download\.|INDEX_URL|index-url", text) == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "index.md" or f"]({name})" in index, f"docs/index.md does not list {name}"
