"""Environments that need packages of an extra: which extra brings what is missing."""

from __future__ import annotations

from collections.abc import Iterator

EXTRA_OF = {
    "Box2D": "box2d",
    "mujoco": "mujoco",
    "imageio": "mujoco",
    "ale_py": "atari",
    "cv2": "atari",
    "envpool": "envpool",
}
"""The extra of `rl-training` that brings a module, by the module's name."""

MODULE_OF_NAMESPACE = {"ALE": "ale_py"}
"""The module that registers the ids of a namespace, where the two have different names."""


def missing_extra(error: BaseException) -> str | None:
    """Returns what to install where an error comes of a missing package of an extra; None where it does not."""
    for link in _chain(error):
        package = (link.name or "").partition(".")[0] if isinstance(link, ModuleNotFoundError) else ""
        if package in EXTRA_OF:
            return f"{package} is not installed; run: pip install 'rl-training[{EXTRA_OF[package]}]'"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__
