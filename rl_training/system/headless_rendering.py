"""Rendering on a machine without a display: how MuJoCo makes pictures, and why it can't."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from importlib.util import find_spec

VARIABLE = "MUJOCO_GL"
"""Environment variable that names MuJoCo's renderer: `egl`, `osmesa`, or `glfw`, which needs a display."""

_LIBRARIES = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6")}
"""The libraries of the renderers that need no display, in the order of preference: EGL uses a GPU if there is one."""

_GRAPHICS = re.compile("OpenGL|EGL|OSMesa|GLFW|MUJOCO_GL|DISPLAY")


def has_display() -> bool:
    """Returns whether programs can show windows."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def has_library(name: str) -> bool:
    """Returns whether a shared library is installed; loads it into this process."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def find_renderer() -> str | None:
    """Returns the renderer of MuJoCo that needs no display, if one is installed."""
    return next((name for name, libraries in _LIBRARIES.items() if any(map(has_library, libraries))), None)


def choose_renderer() -> None:
    """Sets `MUJOCO_GL` for this process and its children if there is no display.

    Call it before an environment that returns pictures is made, because MuJoCo reads the variable when it is imported.
    By default MuJoCo uses GLFW, which fails without a display. A value that the user has set stays.
    """
    if has_display() or VARIABLE in os.environ or find_spec("mujoco") is None:
        return
    if (renderer := find_renderer()) is not None:
        os.environ[VARIABLE] = renderer


def explain_failure(text: str) -> str | None:
    """Returns what to do about an error of a renderer, if the cause is that there is no display; else None.

    Args:
        text: The message of the error.
    """
    if has_display() or not _GRAPHICS.search(text):
        return None
    if find_renderer() is None:
        found = "neither EGL nor OSMesa is installed"
        return f"there is no display, and {found}; install libegl1 or libosmesa6 (their names in Debian and Ubuntu)"
    chosen = os.environ.get(VARIABLE)
    return (
        f"there is no display, and {VARIABLE} is {chosen or 'not set'}; set {VARIABLE}=egl or osmesa, whichever has a "
        f"driver here (in Debian and Ubuntu, libegl1 and libosmesa6)"
    )
