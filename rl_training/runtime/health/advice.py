"""What usually helps against each kind of bad training, with the names of settings."""

from __future__ import annotations

from collections.abc import Mapping

from rl_training.runs.health_warnings import Kind

STEADIER = (
    "a lower learning_rate or one that decays (learning_rate_schedule: linear), a larger buffer_size, or a lower tau"
)
MORE_ENTROPY = "entropy_coef: auto or a higher number, a higher target_entropy, or a lower learning_rate"
SLOWER = "a lower tau, a lower learning_rate, a lower gamma, or normalization.reward: true if rewards are large"
SEEN_REWARDS = "hindsight if the environment has goals, or a reward on the way to the goal (training_wrappers)"
LONGER_WARMUP = f"a higher warmup_hold and learning_starts, {SEEN_REWARDS}"
"""What helps several actor-critics."""

ADVICE: Mapping[Kind, Mapping[str, str]] = {
    "evaluation_fell": {
        "ppo": "a lower learning_rate or one that decays (learning_rate_schedule: linear), fewer epochs, or target_kl",
        "dqn": "a lower learning_rate or one that decays (learning_rate_schedule: linear), a larger buffer_size or "
        "batch_size, or double: true",
        "sac": STEADIER,
        "td3": STEADIER,
        "tqc": STEADIER,
    },
    "exploration_collapsed": {
        "ppo": "a higher entropy_coef, a lower learning_rate, or target_kl; for Box actions also a higher "
        "network.initial_log_std",
        "sac": MORE_ENTROPY,
        "tqc": MORE_ENTROPY,
    },
    "values_worse_than_constant": {
        "ppo": "normalization.reward: true, a lower learning_rate, a value_coef of about 0.5, or more rollout_steps; "
        "if observations are large, normalization.observation: true",
    },
    "q_values_diverged": {
        "dqn": "a higher target_update_every, double: true, a lower learning_rate, a lower gamma, or "
        "normalization.reward: true if rewards are large",
        "sac": SLOWER,
        "td3": SLOWER,
        "tqc": f"a higher drop_quantiles, {SLOWER}",
    },
    "returns_never_differ": {
        "ppo": "a higher entropy_coef or network.initial_log_std, more num_envs, or a reward on the way to the goal "
        "(training_wrappers)",
        "dqn": f"a higher exploration.fraction, {SEEN_REWARDS}",
        "sac": LONGER_WARMUP,
        "td3": f"a higher warmup_hold and learning_starts, a higher exploration_noise, {SEEN_REWARDS}",
        "tqc": LONGER_WARMUP,
    },
}
"""The advice for a kind of warning and an algorithm."""

OTHER_ALGORITHMS: Mapping[Kind, str] = {
    "evaluation_fell": "a lower step size",
    "exploration_collapsed": "more exploration",
    "values_worse_than_constant": "normalization.reward: true",
    "q_values_diverged": "a lower step size",
    "returns_never_differ": "more exploration, or a reward on the way to the goal (training_wrappers)",
}
"""The advice for algorithms of other packages."""


def give_advice(kind: Kind, algo: str) -> str:
    """Returns what usually helps."""
    return ADVICE[kind].get(algo, OTHER_ALGORITHMS[kind])
