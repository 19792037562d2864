"""Names the extra of `rl-training` that provides a package which an environment is missing."""

from __future__ import annotations

from collections.abc import Iterator

EXTRA_OF = {
    "Box2D": "box2d",
    "mujoco": "mujoco",
    "imageio": "mujoco",
    "ale_py": "atari",
    "cv2": "atari",
    "envpool": "envpool",
    "gymnasium_robotics": "robotics",
    "pygame": "render",
}
"""The extra of `rl-training` that provides a module, by the name of the module."""

MODULE_OF_NAMESPACE = {"ALE": "ale_py"}
"""The module that registers the ids of a namespace, if its name differs from the namespace."""


def explain_missing_extra(error: BaseException) -> str | None:
    """Returns how to install the extra whose package is missing; None if the error has another cause."""
    for link in _walk_causes(error):
        package = (link.name or "").partition(".")[0] if isinstance(link, ModuleNotFoundError) else ""
        if package in EXTRA_OF:
            return f"{package} is not installed; run: pip install 'rl-training[{EXTRA_OF[package]}]'"
    return None


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__
