"""Ends the session with one line if no GPU can be used."""

import pytest
import torch


def pytest_sessionstart() -> None:
    """Refuses a machine without a GPU: each test would fail, in many lines."""
    if not torch.cuda.is_available():
        pytest.exit(f"make gpu-test needs a GPU that torch sees; torch {torch.__version__} sees none", returncode=2)
