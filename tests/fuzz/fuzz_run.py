"""Feeds thousands of changed files to the readers and counts the outcomes: `make fuzz`.

    python tests/fuzz/fuzz_run.py --inputs 200000 --out benchmarks/results/fuzz.json

An input may be loaded, as what the valid file holds or as other values of the same form, or refused by one error of
ours in one line. All else is a fault: a traceback, more than 5 s of CPU, a dead process, more memory than twice the
file and 64 MB, or a hashed file that was changed and loaded. Faults are shrunk by hypothesis and printed as a `Case`,
which `test_fuzz.py` can keep.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import selectors
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from fuzz_edits import ON_ARCHIVES, ON_BYTES, ON_VALUES, Case
from fuzz_samples import FORMATS, TENSORS, apply, make_samples
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

BATCH = 250
"""Inputs of one hypothesis run, each with a seed of its own."""
HANG_SECONDS = 5.0
"""Seconds of CPU time, or a minute of wall-clock time, after which an input counts as a hang."""
GOOD = ("loaded", "refused")

Fault = tuple[Case, dict[str, Any]]


class Child:
    """A reading process, which is begun again when it dies or hangs."""

    def __init__(self, samples: Path, work: Path) -> None:
        self._samples, self._work = samples, work
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: Case) -> dict[str, Any]:
        """Returns the outcome of an input."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        file = self._work / "input"
        file.write_bytes(apply(self._samples, case))
        request = {"format": case.format, "sealed": case.sealed, "file": str(file)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer(HANG_SECONDS)

    def end(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(Path(__file__).with_name("fuzz_reader.py")), str(self._samples), str(self._work)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        started = self._answer(600.0)
        assert started.get("ready"), started

    def _answer(self, cpu_seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        process, begun = psutil.Process(self._process.pid), time.monotonic()
        used = sum(process.cpu_times()[:2])
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(1.0):
                spent, waited = sum(process.cpu_times()[:2]) - used, time.monotonic() - begun
                if spent > cpu_seconds or waited > 12 * cpu_seconds:
                    self.end()
                    return {"outcome": "hang", "what": f"{spent:.1f} s of CPU", "seconds": spent, "bytes": 0}
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._process = None
            return {"outcome": "died", "what": f"exit code {code}", "seconds": 0.0, "bytes": 0}
        answer: dict[str, Any] = json.loads(line)
        if answer.get("seconds", 0.0) > cpu_seconds:
            answer["outcome"] = "hang"
        return answer


def cases(format: str) -> st.SearchStrategy[Case]:
    """Returns changed files of a format: by bytes, and by what they hold with the hashes made right."""
    edits = (
        st.one_of(ON_VALUES, ON_VALUES, ON_ARCHIVES, ON_BYTES) if format in TENSORS else st.one_of(ON_VALUES, ON_BYTES)
    )
    lists = st.lists(edits, min_size=1, max_size=3).map(tuple)
    return st.builds(Case, st.just(format), lists, st.sampled_from([True, True, True, False]))


class Tally:
    """The outcomes of all inputs."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.slowest: tuple[float, str] = (0.0, "")
        self.largest: tuple[int, str] = (0, "")
        self.faults: list[dict[str, str]] = []

    def add(self, case: Case, answer: dict[str, Any]) -> None:
        """Counts an input."""
        self.outcomes.setdefault(case.format, Counter())[answer["outcome"]] += 1
        self.slowest = max(self.slowest, (answer["seconds"], repr(case)))
        self.largest = max(self.largest, (answer["bytes"], repr(case)))

    def merge(self, other: Tally) -> None:
        """Adds another tally."""
        for format, counts in other.outcomes.items():
            self.outcomes.setdefault(format, Counter()).update(counts)
        self.slowest, self.largest = max(self.slowest, other.slowest), max(self.largest, other.largest)
        self.faults += other.faults


def fuzz(child: Child, format: str, inputs: int, first_seed: int, *, tally: Tally) -> None:
    """Feeds inputs of one format to a reader, in batches; a batch ends at its first fault, which is shrunk."""
    number = zlib.crc32(format.encode())
    for batch, start in enumerate(range(0, inputs, BATCH)):
        faults = _batch(child, format, min(BATCH, inputs - start), (first_seed, number, batch), tally)
        if faults:
            case, answer = min(faults, key=lambda fault: len(repr(fault[0])))
            tally.faults.append({"case": repr(case), "outcome": answer["outcome"], "what": answer["what"]})
            print(f"FAULT: {case!r}\n{answer['outcome']}: {answer['what']}", file=sys.stderr, flush=True)


def _batch(child: Child, format: str, count: int, seeds: tuple[int, ...], tally: Tally) -> list[Fault]:
    faults: list[Fault] = []

    @seed(zlib.crc32(repr(seeds).encode()))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(cases(format))
    def one(case: Case) -> None:
        answer = child.ask(case)
        if not faults:  # what is tried to make a fault smaller is no input
            tally.add(case, answer)
        if answer["outcome"] not in GOOD:
            faults.append((case, answer))
            raise AssertionError(answer["outcome"])

    with contextlib.suppress(AssertionError, Flaky):
        one()
    return faults


def _share(samples: Path, work: Path, formats: list[str], inputs: int, first_seed: int, tallies: Any) -> None:
    child, tally = Child(samples, work), Tally()
    try:
        for format in formats:
            fuzz(child, format, inputs, first_seed, tally=tally)
    finally:
        child.end()
        tallies.put(tally)


def run(inputs: int, first_seed: int, workers: int, folder: Path) -> Tally:
    """Feeds inputs of all formats to as many readers as there are workers."""
    samples, tallies = folder / "samples", multiprocessing.get_context("fork").SimpleQueue()
    make_samples(samples)
    each = -(-inputs // len(FORMATS))
    shares = [
        multiprocessing.get_context("fork").Process(
            target=_share, args=(samples, folder / f"work{i}", FORMATS[i::workers], each, first_seed, tallies)
        )
        for i in range(workers)
    ]
    for share in shares:
        share.start()
    total = Tally()
    for _ in shares:
        total.merge(tallies.get())
    for share in shares:
        share.join()
    return total


def result(tally: Tally, arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Returns the result that is written to the file."""
    together = sum(tally.outcomes.values(), Counter[str]())
    return {
        "command": f"python tests/fuzz/fuzz_run.py --inputs {arguments.inputs} --seed {arguments.seed}",
        "seed": arguments.seed,
        "versions": {name: _version(name) for name in ("torch", "numpy", "hypothesis", "gymnasium", "pydantic")},
        "python": platform.python_version(),
        "inputs": together.total(),
        "outcomes": dict(together),
        "formats": {format: dict(counts) for format, counts in sorted(tally.outcomes.items())},
        "tracebacks": together["traceback"],
        "hangs": together["hang"],
        "slowest": {"cpu_seconds": round(tally.slowest[0], 3), "case": tally.slowest[1][:300]},
        "largest": {"bytes": tally.largest[0], "case": tally.largest[1][:300]},
        "faults": tally.faults,
        "minutes": round(seconds / 60, 1),
    }


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Feed changed files to every reader.")
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    """Runs the fuzzer; 1 if there was a fault."""
    arguments, begun = _arguments(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = run(arguments.inputs, arguments.seed, arguments.workers, Path(folder))
    found = result(tally, arguments, time.monotonic() - begun)
    print(json.dumps(found, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if found["faults"] or set(found["outcomes"]) - set(GOOD) else 0


if __name__ == "__main__":
    sys.exit(main())
