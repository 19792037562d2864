"""Imports torch and gymnasium, which no training can do without, and prints the peak memory of the process as JSON."""

import json

import gymnasium  # noqa: F401
import torch  # noqa: F401

from benchmarks.speed.meter import read_peak_memory

if __name__ == "__main__":
    print(json.dumps({"peak_memory_bytes": read_peak_memory()}))
