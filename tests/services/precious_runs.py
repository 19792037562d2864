"""What an installation must not lose: a champion, and a run that was stopped on its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import rl_training
from rl_training.runtime.callbacks import Callback
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.shipping.sync import sync
from tests.tiny_tasks import PLAIN


class StopAt(Callback):
    """Stops training at a step."""

    def on_collect_end(self, state: Any) -> None:
        if state.num_timesteps >= 700:
            state.request_stop()


@dataclass(frozen=True)
class PreciousRuns:
    """Runs in the store of this process, all of which MLflow has."""

    champion: Any
    """The training of the champion of the model `plain`."""
    promoted: str
    """The hash of the champion's policy."""
    stopped: Any
    """A training that a callback has stopped."""
    never_stopped: str
    """The hash of the policy that the stopped training must come to."""


def train_precious_runs(experiment: str) -> PreciousRuns:
    task = {"algo": "ppo", **PLAIN, "experiment": experiment}
    champion = rl_training.train({**task, "seed": 1}, progress=False)
    rl_training.promote(champion.run_id, force="the first one")
    promoted = download_checkpoint("models:/plain@champion", wanted="policy").policy_sha256
    never_stopped = rl_training.train({**task, "seed": 2}, track=False, progress=False)
    stopped = rl_training.train({**task, "seed": 2}, [StopAt()], progress=False)
    assert stopped.stop_reason == "callback"
    for run in (champion, stopped):
        assert sync(run.run_dir).message == ""  # on a busy machine the end of a run does not wait long enough
    return PreciousRuns(champion, promoted, stopped, never_stopped.policy_sha256)
