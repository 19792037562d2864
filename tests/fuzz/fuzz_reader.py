"""The process that reads inputs: its memory is limited, and another process watches it.

    python tests/fuzz/fuzz_reader.py SAMPLES WORK

Each line of its input is a request `{"format", "sealed", "file"}`; each line of its output is the result. One
process reads thousands of inputs; the caller ends it if an input takes too long.
"""

from __future__ import annotations

import json
import logging
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_samples import (
    ALGORITHMS,
    FORMATS,
    RUN_FILES,
    SWEEPS,
    VERSION,
    checkpoint_of,
    name_of,
    sample,
    seal,
    trainer_of,
)

from rl_training import run_layout
from rl_training.api.reproduction.original import read_metrics
from rl_training.comparison.recorded_run import read_directory, read_tags
from rl_training.comparison.selection import find_fault
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer
from rl_training.errors import ConfigError, ReceivedError, RLTrainingError
from rl_training.experiment.loading import config_from_mapping, config_of_checkpoint, load_config
from rl_training.promotion.decision import make_result, read_decision
from rl_training.promotion.monitoring_run import read_evaluation
from rl_training.runtime.checkpoint import open_checkpoint
from rl_training.runtime.checkpoint.best_checkpoint import best_path
from rl_training.runtime.checkpoint.downloads import read_download
from rl_training.runtime.checkpoint.plain_state import policy_sha256, to_plain
from rl_training.runtime.checkpoint.replay_shards import load_replay
from rl_training.runtime.run_utils import open_training_run
from rl_training.runtime.workflows import load_policy
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.methods import make_method
from rl_training.sweeps.plan import RunRecord, Step
from rl_training.sweeps.segments import from_text, to_text
from rl_training.sweeps.study.driver import format_record
from rl_training.sweeps.study.rounds import require_planned
from rl_training.sweeps.study.study import StoredRound
from rl_training.tracking.attempts import parse_attempts
from rl_training.tracking.orphaned_runs import resolve_end_status
from rl_training.tracking.shipping.metrics_reader import MetricsReader
from rl_training.tracking.shipping.shipment import Shipment
from rl_training.tracking.shipping.sync import find_run_store
from rl_training.tracking.shipping.upload_progress import count_unsent, load_progress
from rl_training.tracking.version_files import check_description

ROOM = 64 * 2**20
"""Bytes that a reader may take beside twice its file."""
SMALL = ("MemoryError", "allocate memory", "enough memory", "Unable to allocate")
"""Words of what is raised where memory is short, in a refusal too."""
MIXED = np.dtype([("vector", np.float32, (3,)), ("camera", np.uint8, (1, 2, 3))])


class Reader:
    """Reads inputs of all formats."""

    def __init__(self, samples: Path, work: Path) -> None:
        self.samples, self.work = samples, work
        self.trainers = {algo: trainer_of(samples, algo, work / "runs" / algo) for algo in ALGORITHMS}
        space = {"gamma": {"range": [0.9, 0.99]}, "network.hidden": {"choice": [[64], [64, 64]]}}
        config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1_000}
        self.sweep = load_sweep({"config": config, "space": space, "method": "random"})
        self.good = {}
        for format in FORMATS:
            data = sample(samples, format)
            first = self.read(format, data, sealed=False)
            assert first["outcome"] == "loaded", (format, first)
            self.good[format] = first["what"]

    def read(self, format: str, data: bytes, *, sealed: bool) -> dict[str, Any]:
        """Returns how reading an input ended, and what it took."""
        call = self._prepared(format, data, sealed)
        base = _pages(0)
        Path("/proc/self/clear_refs").write_text("5")
        resident, started = _pages(1), time.process_time()
        resource.setrlimit(resource.RLIMIT_AS, (base + 2 * len(data) + ROOM, resource.RLIM_INFINITY))
        try:
            outcome, what = "loaded", str(call())
        except RLTrainingError as error:
            outcome, what = _refusal(error)
        except BaseException as error:
            outcome, what = "traceback", "".join(traceback.format_exception(error)[-6:])
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        seconds = time.process_time() - started
        if outcome == "loaded" and not sealed and what != self.good.get(format, what) and _is_hashed(format):
            outcome = "unequal"
        return {"outcome": outcome, "what": what[:3_000], "seconds": seconds, "bytes": max(0, _peak() - resident)}

    def _prepared(self, format: str, data: bytes, sealed: bool) -> Callable[[], Any]:
        """Puts an input where it belongs; returns what reads it."""
        if format in ("overrides", "attempts", "promotion", "monitoring"):
            return lambda: self._text(format, data)
        if format in SWEEPS:
            return lambda: self._sweep(format, data)
        if format in (*RUN_FILES, "metrics.jsonl"):
            return self._in_run(format, data)
        if format == "MLmodel":
            return self._in_version(data)
        path = self.work / "checkpoints" / "step_000000000001"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(checkpoint_of(self.samples, format), path)
        name = name_of(self.samples, format)
        (path / name).write_bytes(data)
        if sealed:
            seal(path, name)
        return lambda: self._checkpoint(format, path)

    def _checkpoint(self, format: str, path: Path) -> Any:
        kind, _, algo = format.partition("/")
        checkpoint = open_checkpoint(path)
        if kind == "manifest":
            return checkpoint.manifest
        if kind == "config":
            return config_of_checkpoint(checkpoint), load_policy(checkpoint).action_space
        if kind == "policy":
            load_policy(checkpoint).act([load_policy(checkpoint).observation_space.sample()])
            return checkpoint.policy_sha256
        if kind == "trainer":
            self.trainers[algo].restore(checkpoint)
            return policy_sha256({"state": to_plain(self.trainers[algo]._trainer_state()["algorithm"])})
        buffer = (
            ReplayBuffer(12, 2, (), MIXED, (), np.dtype(np.int64))
            if kind == "shard"
            else FrameReplayBuffer(12, 2, (4, 2, 3), 1, (), np.dtype(np.int64))
        )
        load_replay(checkpoint, buffer)
        return policy_sha256({name: np.array(array.tobytes()) for name, array in buffer.arrays().items()})

    def _in_run(self, format: str, data: bytes) -> Callable[[], Any]:
        run_dir = self.work / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir()
        for name in ("metadata.json", "tracking.json", "mlflow.json", "shipped.json", "status.json", "metrics.jsonl"):
            shutil.copy(self.samples / "ppo" / name, run_dir / name)
        shutil.copy(checkpoint_of(self.samples, "config") / "config.yaml", run_dir / run_layout.CONFIG)
        (run_dir / format).write_bytes(data)
        return {
            "metadata.json": lambda: (open_training_run(run_dir), self._recorded(run_dir)),
            "tracking.json": lambda: (Shipment(run_dir, "sqlite:///x.db").attempt, read_tags(run_dir)),
            "mlflow.json": lambda: (find_run_store(run_dir, None), self._recorded(run_dir)),
            "shipped.json": lambda: load_progress(run_dir, "sqlite:///x.db", "0" * 32),
            "status.json": lambda: (resolve_end_status(run_dir), self._recorded(run_dir)),
            "best.json": lambda: best_path(run_dir),
            "download.json": lambda: read_download(open_checkpoint(self._inside(run_dir))),
            "metrics.jsonl": lambda: self._metrics(run_dir),
        }[format]

    def _in_version(self, data: bytes) -> Callable[[], Any]:
        root = self.work / "version"
        shutil.copytree(VERSION, root, dirs_exist_ok=True)
        (root / "MLmodel").write_bytes(data)
        return lambda: check_description(root)

    def _inside(self, run_dir: Path) -> Path:
        path = run_dir / "step_000000000001"
        if not path.exists():
            shutil.copytree(checkpoint_of(self.samples, "manifest"), path)
        return path

    @staticmethod
    def _metrics(run_dir: Path) -> Any:
        lines = MetricsReader(run_dir / run_layout.METRICS, 48).read(10_000)
        return len(lines), count_unsent(run_dir, 48, 0), len(read_metrics(run_dir))

    @staticmethod
    def _recorded(run_dir: Path) -> Any:
        """Reads a run as a comparison does."""
        run = read_directory(run_dir)
        return run.name, run.run_uid, run.state, run.started, run.versions, find_fault(run, "heldout/return_mean")

    def _text(self, format: str, data: bytes) -> Any:
        if format == "overrides":
            return self._overrides(data)
        if format == "attempts":
            return parse_attempts(data.decode(errors="replace"), "the tag")
        file = self.work / "record.json"
        file.write_bytes(data)
        if format == "monitoring":
            return read_evaluation(file)
        return make_result(read_decision(file), "0" * 32, "1", None).to_dict()

    def _sweep(self, format: str, data: bytes) -> Any:
        if format == "sweep":
            file = self.work / "sweep.yaml"
            file.write_bytes(data)
            sweep = load_sweep(file)
            make_method(sweep).plan([])
            return sweep.name, sweep.settings, sweep.digest
        try:
            if format == "segment":
                return to_text(from_text(data, Segment))
            if format == "record":
                record = from_text(data, RunRecord)
                return format_record(Step(0, {}, (0,), 1), record), to_text(record)
            step = from_text(data, Step)
            require_planned(self.sweep, [StoredRound((Step(0, {}, (0, 1), 16),), {}), StoredRound((step,), {})])
            return to_text(step)
        except NotReadable as error:  # its readers say where it was
            raise ReceivedError(str(error)) from error

    def _overrides(self, data: bytes) -> Any:
        """Reads overrides as a flow takes them: as text, and as the values that Prefect makes of the text."""
        text = data.decode(errors="replace")
        results = [load_config("ppo/cartpole", text)]
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # Prefect's own refusal
            return results
        results.append(load_config("ppo/cartpole", value))
        if isinstance(value, dict):
            task = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1_000}
            nested = {key: item for key, item in value.items() if "." not in key}
            results.append(config_from_mapping({**nested, **task}))
        return results


def _refusal(error: RLTrainingError) -> tuple[str, str]:
    text = str(error)
    if any(word in text for word in SMALL):
        return "memory", text
    lines = text.splitlines() or [""]
    if isinstance(error, ConfigError):  # a line for each fault
        lines = lines[:1] if len(lines) <= 101 else lines
    good = len(lines) == 1 and 0 < len(text) < 60_000 and text.isprintable() | isinstance(error, ConfigError)
    return ("refused" if good else "not one line"), text


def _is_hashed(format: str) -> bool:
    return format in ("manifest", "config") or "/" in format or "shard" in format


def _pages(index: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[index]) * resource.getpagesize()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    """Answers requests until there are no more."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    samples, work = map(Path, sys.argv[1:])
    reader = Reader(samples, work)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        data = Path(request["file"]).read_bytes()
        print(json.dumps(reader.read(request["format"], data, sealed=request["sealed"])), flush=True)


if __name__ == "__main__":
    main()
