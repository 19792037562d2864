"""Two processes promote at the same time, repeatedly; the better candidate must become the champion each time.

The benchmark runs on an MLflow server, where the registry itself holds the lock, and on an SQLite file, with a file
lock. In each pair, a worse and a better candidate compete with a champion that is worse than both, and take turns in
beginning slightly earlier. A thread watches the champion at the same time: there must always be one.

    python -m benchmarks.promotion.promotion_pairs
    python -m benchmarks.promotion.promotion_pairs --pairs 2     # writes no JSON
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, make_environment, record

sys.path.insert(0, str(ROOT / "tests"))  # policies of known quality, and a server
from mlflow_server import Server
from mlflow_store import BAD, GOOD, WEAK, run_with_policy

from rl_training.api.promotion import promote_candidate
from rl_training.promotion.champion_history import get_number
from rl_training.promotion.model_registry import get_champion
from rl_training.system.paths import HOME_VARIABLE, URI_VARIABLE, embedded_tracking_uri
from rl_training.tracking.mlflow_store import connect

PAIRS = 20
LEAD = 0.02
"""Seconds by which one of the two processes begins earlier."""
NOTICE = 0.3
"""Seconds between the offers to both processes and the time at which they begin."""
LOOK = 0.02
"""Seconds between two queries of the champion."""


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}


class Contender:
    """A process that offers one candidate in each pair."""

    def __init__(self, run_id: str, variables: dict[str, str]) -> None:
        self._run_id = run_id
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.promotion.contender"], cwd=ROOT, env=variables, text=True, **PIPES
        )

    def tell(self, model: str, at: float) -> None:
        """Makes the process offer its candidate for a model at a given time (in seconds since 1970)."""
        assert self._process.stdin is not None
        offer = {"source": self._run_id, "overrides": make_overrides(model), "at": at}
        print(json.dumps(offer), file=self._process.stdin, flush=True)

    def answer(self) -> str:
        """Returns the next line that the process prints.

        Raises:
            RuntimeError: The process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"a contender ended with exit code {self._process.wait()}")
        return line

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


class Watcher:
    """Queries the champion of a model continuously, in a thread."""

    def __init__(self, uri: str, model: str) -> None:
        self.seen: list[str | None] = []
        """The champions in the order in which they were seen; None stands for no champion."""
        self._client, self._model, self._done = connect(uri), model, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(LOOK):
            now = get_number(get_champion(self._client, self._model))
            if not self.seen or self.seen[-1] != now:
                self.seen.append(now)

    def end(self) -> list[str | None]:
        """Ends the thread, and returns the champions that were seen."""
        self._done.set()
        self._thread.join()
        return self.seen


def make_overrides(model: str) -> list[str]:
    """Returns the overrides of an offer for a model."""
    return [f"promotion.model={model}", "promotion.episodes=20"]


@contextmanager
def provide_store(kind: str, folder: Path) -> Iterator[str]:
    """Yields the URI of a new store, which this process uses in the meantime."""
    os.environ[HOME_VARIABLE] = str(folder)
    os.environ.pop(URI_VARIABLE, None)
    connect(embedded_tracking_uri())
    if kind == "sqlite":
        yield embedded_tracking_uri()
        return
    server = Server(folder)
    server.start()
    os.environ[URI_VARIABLE] = server.uri
    try:
        yield server.uri
    finally:
        server.stop()
        del os.environ[URI_VARIABLE]


def compete(uri: str, home: Path, pairs: int) -> dict[str, Any]:
    """Returns the results of the pairs on a store.

    Args:
        uri: The URI of the store.
        home: `RL_TRAINING_HOME` of both processes.
        pairs: Number of pairs, each with its own registered model.
    """
    base, worse, better = (run_with_policy(gains, uri=uri, seed=i)[1] for i, gains in enumerate((BAD, WEAK, GOOD)))
    variables = {**make_environment(home), URI_VARIABLE: uri}
    contenders = {"worse": Contender(worse, variables), "better": Contender(better, variables)}
    try:
        for contender in contenders.values():
            contender.answer()  # ready
        played = [play_pair(uri, f"pair-{i:02d}", base, contenders, ("worse", "better")[i % 2]) for i in range(pairs)]
    finally:
        for contender in contenders.values():
            contender.end()
    return {
        "pairs": pairs,
        "better_is_champion": sum(pair["champion"] == "better" for pair in played),
        "begun_before_the_other_ended": sum(pair["overlap_seconds"] > 0 for pair in played),
        "moments_without_champion": sum(pair["seen"].count(None) for pair in played),
        "played": played,
    }


def play_pair(uri: str, model: str, base: str, contenders: dict[str, Contender], first: str) -> dict[str, Any]:
    """Returns the result of one pair: the champion, and the opponent of each candidate."""
    promote_candidate(base, make_overrides(model), tracking_uri=uri)
    watcher = Watcher(uri, model)
    at = time.time() + NOTICE
    for name, contender in contenders.items():
        contender.tell(model, at if name == first else at + LEAD)
    decisions = {name: json.loads(contender.answer()) for name, contender in contenders.items()}
    seen = watcher.end()
    names = {decision["version"]: name for name, decision in decisions.items()}
    champion = get_number(get_champion(connect(uri), model))
    return {
        "first": first,
        "champion": names.get(str(champion), "neither"),
        "overlap_seconds": min(d["ended"] for d in decisions.values()) - max(d["began"] for d in decisions.values()),
        "seen": [number if number is None else names.get(number, "base") for number in seen],
        **{
            name: {
                "verdict": decision["verdict"],
                "mean": decision["candidate"]["return_mean"],
                "against": names.get(decision["previous_version"], "base"),
                "against_mean": decision["champion"]["return_mean"],
            }
            for name, decision in decisions.items()
        },
    }


def holds(result: dict[str, Any]) -> bool:
    """Tells whether the better candidate always won, there always was a champion, and both always overlapped."""
    all_of_them = result["better_is_champion"] == result["begun_before_the_other_ended"] == result["pairs"]
    return bool(all_of_them and result["moments_without_champion"] == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Let two processes promote at the same time.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs on each kind of store (default: %(default)s)")
    pairs = parser.parse_args().pairs
    results = {}
    for kind in ("server", "sqlite"):
        with tempfile.TemporaryDirectory(prefix="pairs-") as folder, provide_store(kind, Path(folder)) as uri:
            results[kind] = result = compete(uri, Path(folder), pairs)
        print(f"{kind}: the better is champion in {result['better_is_champion']} of {pairs}")
    if pairs == PAIRS:
        record("promotion-pairs", results)
    return 0 if all(map(holds, results.values())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
