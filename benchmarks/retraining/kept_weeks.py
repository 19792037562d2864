"""Keeps the finished weeks of the simulated year, so that a simulation that was interrupted continues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


class KeptWeeks:
    """The records of the finished weeks, and a copy of the home as the last of them has left it.

    Args:
        folder: Where they are; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._folder, self._file = folder, folder / "weeks.jsonl"

    def restore(self) -> list[dict[str, Any]]:
        """Sets the home back to the end of the last finished week, and returns the records of all of them."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        shutil.rmtree(self.home, ignore_errors=True)
        if lines:
            shutil.copytree(self._copy(len(lines)), self.home)
        return [json.loads(line) for line in lines]

    def add(self, week: int, record: dict[str, Any]) -> None:
        """Keeps a week that is finished; `week` counts from 1."""
        shutil.rmtree(self._copy(week), ignore_errors=True)
        shutil.copytree(self.home, self._copy(week))
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        shutil.rmtree(self._copy(week - 1), ignore_errors=True)

    def remove(self) -> None:
        """Removes everything."""
        shutil.rmtree(self._folder)

    def _copy(self, week: int) -> Path:
        return self._folder / f"home-after-week-{week}"
