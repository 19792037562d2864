"""The packages and journeys on the architecture page exist as the page describes them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
JOURNEYS = (
    "From settings to the first PPO update",
    "A checkpoint to MLflow and back",
    "A sweep, from its file to its winner",
)


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def stops(title: str) -> list[tuple[Path, str]]:
    """Returns the file and the text of each numbered step."""
    steps = re.findall(r"^\d+\. \[[\w/.]+\]\(\.\./([\w/.]+)\):(.*?)(?=^\d+\. |\Z)", section(title), re.M | re.S)
    assert len(steps) == len(re.findall(r"^\d+\. ", section(title), re.M))
    return [(ROOT / name, text) for name, text in steps]


def defines(file: Path, name: str) -> bool:
    definition = rf"^\s*(?:async )?(?:def|class) {name}\b|^{name} = partial\("
    return re.search(definition, file.read_text(encoding="utf-8"), re.M) is not None


@pytest.mark.parametrize("title", JOURNEYS)
def test_a_journey_passes_at_most_fifteen_files(title):
    files = [file for file, _ in stops(title)]
    assert 5 <= len(set(files)) <= 15
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("title", JOURNEYS)
def test_each_step_of_a_journey_names_a_function_or_class_of_its_file(title):
    for file, text in stops(title):
        name, _ = re.match(r"\s*`(\w+)(\(\))?`", text).groups()
        assert defines(file, name), f"{file.relative_to(ROOT)} has no {name}"
        other = set(re.findall(r"`(\w+)\(\)`", text)) - {name}
        everywhere = [step for step, _ in stops(title)]
        for called in other:
            assert any(defines(step, called) for step in everywhere), f"{called} is in no file of the journey"


def test_the_answers_name_functions_of_the_files_that_they_link():
    for line in section("Where to find it").splitlines():
        for name, link in re.findall(r"`(\w+)` in \[[\w.]+\]\(\.\./([\w/.]+)\)", line):
            assert defines(ROOT / link, name), f"{link} has no {name}"


def test_every_package_is_described_once():
    named = re.findall(r"^\| `(rl_training/\w+)` \|", section("Packages"), re.M)
    packages = {f"rl_training/{file.parent.name}" for file in (ROOT / "rl_training").glob("*/__init__.py")}
    assert sorted(named) == sorted(packages)


def test_the_folders_of_the_repository_exist():
    named = re.findall(r"^\| `([\w/]+)` \|", section("Packages"), re.M)
    assert len(named) > 20
    assert all((ROOT / name).is_dir() for name in named)
