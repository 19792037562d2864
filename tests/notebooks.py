"""Runs the notebooks of examples/ as a user would, from a folder and a home of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def list_code(name: str) -> list[str]:
    """Returns the code cells of a notebook."""
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_notebook(name: str, folder: Path) -> list[str]:
    """Runs every cell of a notebook in `folder`, and returns the text that each code cell has printed."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=1_200, kernel_name="python3", resources=resources).execute(env=os.environ)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in code]
