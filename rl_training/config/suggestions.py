"""Suggests the key that an unknown key was meant to be: a misspelling, a key of another level or of another tool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

SYNONYMS: Mapping[str, str] = {
    "algorithm": "algo",
    "env": "env_id",
    "environment": "env_id",
    "env_args": "env_kwargs",
    "wrapper": "wrappers",
    "env_wrapper": "wrappers",
    "options": "reset_options",
    "callback": "callbacks",
    "curricula": "curriculum",
    "stages": "curriculum",
    "n_envs": "num_envs",
    "timesteps": "total_timesteps",
    "steps": "total_timesteps",
    "num_timesteps": "total_timesteps",
    "n_timesteps": "total_timesteps",
    "total_steps": "total_timesteps",
    "lr": "learning_rate",
    "anneal_lr": "learning_rate_schedule",
    "n_steps": "rollout_steps",
    "num_steps": "rollout_steps",
    "n_epochs": "epochs",
    "update_epochs": "epochs",
    "minibatch_size": "batch_size",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "clip_coef": "clip_range",
    "clip_range_vf": "value_clip",
    "net_arch": "network.hidden",
    "policy_kwargs": "network",
    "features_extractor_class": "network.body",
    "normalize": "normalization",
    "eval": "evaluation",
    "eval_freq": "evaluation.every",
    "n_eval_episodes": "evaluation.episodes",
    "eval_env": "evaluation.env_id",
    "reward_threshold": "evaluation.stop_at_return",
    "stop_reward": "evaluation.stop_at_return",
    "success_threshold": "promotion.success_floor",
    "info_keywords": "metrics.info",
    "tensorboard": "tracking.sinks",
    "tensorboard_log": "tracking.sinks",
    "loggers": "tracking.sinks",
    "wandb": "tracking.sinks",
    "save_freq": "checkpoint.every",
    "success": "promotion",
    "mlflow": "experiment",
    "min_mean_return": "promotion.floor",
    "registered_model": "promotion.model",
    "experiment_name": "experiment",
    "name": "run_name",
    "output_dir": "run_dir",
}
"""Names that other tools use, and our names for the same settings."""

MOST_LISTED = 10
"""A message lists the keys of a level only if there are at most this many."""


def suggest_key(
    key: str, path: tuple[str | int, ...], model: type[BaseModel], root: type[BaseModel]
) -> tuple[str, type[BaseModel] | None]:
    """Suggests what the unknown `key` was meant to be.

    Args:
        key: The key as it was written.
        path: The path of its level.
        model: The settings of that level.
        root: The settings of the top level.

    Returns:
        A few words of advice, and the settings class of the suggested section, or None for any other suggestion.
    """
    here, everywhere = list(model.model_fields), dict(_iterate_keys(root))
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_").replace(" ", "_")
    if name in here:
        return f"did you mean {name}?", get_section_type(model, name)
    joined = {dotted.replace(".", "_"): dotted for dotted in everywhere if "." in dotted}
    if "." in name and name in everywhere:
        level, _, leaf = name.rpartition(".")
        return f"write {leaf} under {level}, not with a dot", None
    target = SYNONYMS.get(name) or joined.get(name) or joined.get(name.replace("eval_", "evaluation_"))
    if target is not None and target in everywhere:
        return _suggest_at_level(target, path), everywhere[target]
    levels = [dotted.rpartition(".")[0] for dotted in everywhere if dotted.split(".")[-1] == name]
    if levels:
        return f"it belongs {_describe_levels(levels)}", None
    close = find_similar_word(name, here)
    if close:
        return f"did you mean {close}?", get_section_type(model, close)
    close = find_similar_word(
        name, [*(key for key, ours in SYNONYMS.items() if ours in everywhere), *joined, *everywhere]
    )
    if close:
        target = SYNONYMS.get(close) or joined.get(close, close)
        return _suggest_at_level(target, path), everywhere[target]
    advise_elsewhere = getattr(root, "advise_elsewhere", None)
    if advise_elsewhere is not None and not path and (advice := advise_elsewhere(SYNONYMS.get(name, name))):
        return advice, None
    if len(here) > MOST_LISTED:
        page = getattr(root, "described_in", "docs/configuration.md")
        return f"no setting{_name_algorithm(root)} has a similar name; see {page}", None
    return f"known keys: {', '.join(here)}", None


def find_similar_word(word: str, words: Iterable[str]) -> str | None:
    """Returns the most similar of `words`, or None if none is similar."""
    return next(iter(get_close_matches(word, list(words), n=1, cutoff=0.7)), None)


def get_section_type(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Returns the settings class of the section `key` of `model`, or None if `key` is a plain value."""
    annotation: Any = model.model_fields[key].annotation
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _iterate_keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel] | None]]:
    """Yields the dotted path of every key, upper levels first, with the settings class of each section (or None)."""
    sections = {key: get_section_type(model, key) for key in model.model_fields}
    yield from ((prefix + key, section) for key, section in sections.items())
    for key, section in sections.items():
        if section is not None and not get_args(model.model_fields[key].annotation):
            yield from _iterate_keys(section, f"{prefix}{key}.")


def _name_algorithm(root: type[BaseModel]) -> str:
    """Returns " of ppo" for PPO's settings: the key may belong to another algorithm."""
    field = root.model_fields.get("algo")
    return f" of {field.default}" if field is not None and isinstance(field.default, str) else ""


def _suggest_at_level(target: str, path: tuple[str | int, ...]) -> str:
    level, _, leaf = target.rpartition(".")
    if level == ".".join(map(str, path)):
        return f"did you mean {leaf}?"
    return f"did you mean {leaf} {_describe_levels([level])}?"


def _describe_levels(levels: list[str]) -> str:
    named = ["at the top level" if not level else f"in {level}" for level in levels]
    return " or ".join(named)
