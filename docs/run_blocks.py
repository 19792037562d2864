"""Runs the commands and Python blocks of the documentation, each page as one session.

    python docs/run_blocks.py [PAGE ...]      # by default the README and every page of the site

The blocks of a page run in order in a temporary folder with a home of its own: variables that a shell block exports and
names that a Python block defines are there for the next block. A block with a title, such as a YAML file, is saved
under that title. Two kinds of HTML comments, which readers do not see, stand above blocks:

    <!-- run by: make compose-test -->        the next block needs more than this runner has; the target runs it
    <!-- setup: export RUN_ID=... -->         shell commands that stand for what a reader does by hand
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STEP = re.compile(
    r"^(?:<!-- setup: (?P<setup>.*?) -->"
    r"|(?:<!-- run by: make (?P<target>[\w-]+) -->\n+)?"
    r"(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^(?P=indent)```)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One step of a page."""

    line: int
    language: str
    """`bash`, `python` and `setup` run; any other language is text, unless it has a title."""
    code: str
    title: str | None = None
    """File that the block is saved as."""
    target: str | None = None
    """Make target that runs the block."""


def blocks(page: Path) -> list[Block]:
    """Returns the code blocks and setup comments of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in STEP.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["setup"] is not None:
            found.append(Block(line, "setup", match["setup"]))
        else:
            code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
            found.append(Block(line, match["language"], code, match["title"], match["target"]))
    return found


def read_commands(page: Path, target: str) -> list[str]:
    """Returns the commands, one a line and without comments, in the blocks of a page that a make target runs."""
    code = "".join(block.code for block in blocks(page) if block.target == target)
    lines = re.sub(r" *\\\n *", " ", code).splitlines()
    return [command for line in lines if (command := re.sub(r"(^| +)#.*", "", line).strip())]


def run_page(page: Path) -> str | None:
    """Runs a page's blocks in the current folder and returns the first failure, or None."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.code, encoding="utf-8")
        elif block.target is None and block.language in ("bash", "setup"):
            ended = subprocess.run(["bash", "-c", f"set -euo pipefail\n{block.code}\nenv -0 > .env-after"], check=False)
            if ended.returncode:
                return f"{where}: exit code {ended.returncode}"
            pairs = Path(".env-after").read_text(encoding="utf-8").split("\0")
            os.environ.update(pair.split("=", 1) for pair in pairs if pair)
        elif block.target is None and block.language == "python":
            given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            sys.path[:0] = [path for path in given if path and path not in sys.path]  # as if Python was started here
            try:
                exec(compile(block.code, where, "exec"), names)
            except Exception as error:
                return f"{where}: {type(error).__name__}: {error}"
        sys.stdout.flush()
    return None


def run_in_session(page: Path) -> bool:
    """Runs a page in a process, folder and home of its own; prints the result and, after a failure, the output."""
    if not any(block.target is None and block.language in ("bash", "python") for block in blocks(page)):
        return True
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:
        for name in ("examples", "configs", "constraints.txt", "prefect.yaml"):
            Path(folder, name).symlink_to(ROOT / name)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))
        }
        environment |= {
            "RL_TRAINING_HOME": f"{folder}/home",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "120",
        }
        ended = subprocess.run(
            [sys.executable, __file__, "--in-session", page],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    print(f"{'failed' if ended.returncode else 'passed'} {page.relative_to(ROOT)} {time.monotonic() - started:.0f} s")
    if ended.returncode:
        print(ended.stdout)
    return ended.returncode == 0


def main() -> int:
    """Runs the named pages, or all pages, two at a time."""
    if sys.argv[1:2] == ["--in-session"]:
        failure = run_page(Path(sys.argv[2]))
        if failure:
            print(failure)
        return int(failure is not None)
    pages = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    with ThreadPoolExecutor(max_workers=2) as pool:
        return int(not all(list(pool.map(run_in_session, pages))))


if __name__ == "__main__":
    raise SystemExit(main())
