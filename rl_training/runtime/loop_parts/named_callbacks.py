"""Makes the callbacks that the settings ask for: those that they name (`callbacks`), and the watch over health."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rl_training.config.sections import CallbackConfig
from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.contract_guard import hide_secrets_in_warnings
from rl_training.errors import USER_CODE_ERRORS, ConfigError, error_line
from rl_training.runs.health_warnings import HEALTH
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.health.watch import HealthWatch
from rl_training.security.named_class import find_named_class
from rl_training.security.secrets import collect_secret_values, hide, redact, resolve_secrets


def require_callbacks(config: TrainConfig) -> None:
    """Imports the callbacks of the settings, before anything is created.

    Raises:
        ConfigError: A module can't be imported, or does not have a class of callbacks of that name.
    """
    for _ in _find_classes(config):
        pass


def make_callbacks(config: TrainConfig) -> dict[str, Callback]:
    """Returns the callbacks of the settings, in order, by the keys of their states in a checkpoint.

    The watch over health comes first, because it adds to the metrics that the others see. The other keys have the name
    of the class and the number of earlier callbacks of that class, so that a callback that is added does not shift the
    states of others.

    Raises:
        ConfigError: As `require_callbacks`; or the arguments do not fit a class, or refer to a secret that is missing.
    """
    made: dict[str, Callback] = {HEALTH: HealthWatch(config)} if config.logging.health_warnings else {}
    secrets = find_callback_secrets(config)
    counts: Counter[str] = Counter()
    for i, (settings, kind) in enumerate(_find_classes(config)):
        kwargs = resolve_secrets(settings.kwargs, path=f"callbacks.{i}.kwargs")
        try:
            with hide_secrets_in_warnings(secrets):
                made[f"{settings.name}:{counts[settings.name]}"] = kind(**kwargs)
        except USER_CODE_ERRORS as error:
            reason = hide(error_line(error), secrets)
            raise ConfigError(f"callbacks.{i}: {settings.name} could not be made: {reason}") from None
        counts[settings.name] += 1
    return made


def find_callback_secrets(config: TrainConfig) -> frozenset[str]:
    """Returns the secrets that the callbacks are given, and which their errors may repeat."""
    return collect_secret_values({"callbacks": [callback.kwargs for callback in config.callbacks]})


def describe_change(before: TrainConfig, after: TrainConfig) -> list[str]:
    """Returns how the callbacks of a resumed run differ from those of its checkpoint, in words; empty if they do not.

    The arguments are left out, because they may be long. Secrets are not compared: a checkpoint contains none.
    """
    old, new = (redact([c.model_dump() for c in config.callbacks], references=True) for config in (before, after))
    if old == new:
        return []
    names = [", ".join(callback.name for callback in config.callbacks) or "none" for config in (before, after)]
    return [f"callbacks: {names[0]} -> {names[1]}" if names[0] != names[1] else f"arguments of callbacks: {names[0]}"]


def _find_classes(config: TrainConfig) -> Iterator[tuple[CallbackConfig, type[Callback]]]:
    for i, settings in enumerate(config.callbacks):
        what = "a class of callbacks; expected a subclass of rl_training.Callback"
        yield settings, find_named_class(f"callbacks.{i}: {settings.name}", settings.name, Callback, what)
