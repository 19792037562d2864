"""Writes `ppo_format_1`: PPO stopped in the middle of an update, in the middle of episodes, normalisers on.

    python tests/golden/write_ppo_format_1.py

For the record, and for as long as format 1 is not released; what is released is not written again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parent
sys.path.insert(0, str(GOLDEN.parents[1]))

from rl_training.config.algorithms.ppo import PPOConfig  # noqa: E402
from rl_training.experiment.default_manager import DefaultExperimentManager  # noqa: E402
from rl_training.runs.stopping import StopFlag  # noqa: E402
from rl_training.runtime.callbacks import Callback, TrainerState  # noqa: E402


class StopInUpdate(StopFlag):
    """Asks for a stop at the third look after the fourth rollout is full: two minibatches into its update."""

    looks = 3
    armed = False

    @property
    def requested(self) -> bool:
        if self.armed:
            self.looks -= 1
            if self.looks == 0:
                self.request("signal")
        return self.cause is not None


class Arm(Callback):
    def on_collect_end(self, state: TrainerState) -> None:
        if state.num_timesteps == 64 and isinstance(state.stop, StopInUpdate):
            state.stop.armed = True


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = PPOConfig.model_validate({
            "env_id": "CartPole-v1",
            "num_envs": 2,
            "rollout_steps": 8,
            "batch_size": 4,
            "epochs": 2,
            "total_timesteps": 96,
            "learning_rate_schedule": "linear",
            "normalization": {"observation": True, "reward": True},
            "network": {"hidden": [3]},
            "evaluation": {"every": 1_000, "episodes": 2, "num_envs": 2},
            "run_dir": Path(folder) / "run",
        })  # fmt: skip
        result = DefaultExperimentManager().setup(config, [Arm()], stop=StopInUpdate()).train()
        assert (result.num_timesteps, result.stop_reason) == (64, "signal")
        assert result.checkpoint is not None
        shutil.rmtree(GOLDEN / "ppo_format_1", ignore_errors=True)
        shutil.copytree(result.checkpoint, GOLDEN / "ppo_format_1" / result.checkpoint.name)


if __name__ == "__main__":
    main()
