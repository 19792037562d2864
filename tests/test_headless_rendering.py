"""Pictures on a machine without a display: MuJoCo renders by EGL or OSMesa, and a failure names what to set."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from rl_training.api.films.episode_film import film_episode
from rl_training.errors import EnvironmentFault
from rl_training.experiment.loading import config_from_mapping
from rl_training.system import headless_rendering

HALF_CHEETAH = {"algo": "ppo", "env_id": "HalfCheetah-v5", "max_episode_steps": 3, "total_timesteps": 100}


class Still:
    """A policy that applies no torque."""

    def act(self, observations):
        return [np.zeros(6, np.float32)] * len(observations)


@pytest.fixture
def no_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    yield
    monkeypatch.delenv("MUJOCO_GL", raising=False)  # the library may have set it in this process


def film_half_cheetah():
    pytest.importorskip("mujoco")
    film = Image.open(io.BytesIO(film_episode(Still(), config_from_mapping(HALF_CHEETAH), 1)))
    return np.asarray(film.convert("RGB"))


def test_mujoco_is_filmed_without_a_display(no_display):
    if headless_rendering.find_renderer() is None:
        pytest.skip("this machine has neither EGL nor OSMesa")
    assert film_half_cheetah().std() > 10  # a picture with a floor, a sky and an animal


def test_a_renderer_that_needs_a_display_is_named_with_what_to_set_instead(no_display, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(EnvironmentFault, match=r"there is no display, and MUJOCO_GL is glfw.*MUJOCO_GL=egl or osmesa"):
        film_half_cheetah()


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [({"libEGL.so.1", "libOSMesa.so.8"}, "egl"), ({"libOSMesa.so.8"}, "osmesa"), (set(), None)],
)
def test_egl_is_preferred_to_osmesa(libraries, expected, no_display, monkeypatch):
    monkeypatch.setattr(headless_rendering, "has_library", libraries.__contains__)
    assert headless_rendering.find_renderer() == expected
    headless_rendering.choose_renderer()
    assert os.environ.get("MUJOCO_GL") == expected


@pytest.mark.parametrize("variable", ["DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"])
def test_a_display_or_a_setting_of_the_users_own_is_left_alone(variable, no_display, monkeypatch):
    monkeypatch.setattr(headless_rendering, "has_library", lambda name: True)
    monkeypatch.setenv(variable, "glfw")
    headless_rendering.choose_renderer()
    assert os.environ.get("MUJOCO_GL") == (None if variable != "MUJOCO_GL" else "glfw")


def test_without_a_library_the_message_names_the_packages(no_display, monkeypatch):
    monkeypatch.setattr(headless_rendering, "has_library", lambda name: False)
    text = headless_rendering.explain_failure("an OpenGL platform library has not been loaded")
    assert text == (
        "there is no display, and neither EGL nor OSMesa is installed; install libegl1 or libosmesa6 (their names in "
        "Debian and Ubuntu)"
    )
    assert headless_rendering.explain_failure("division by zero") is None
    monkeypatch.setenv("DISPLAY", ":0")
    assert headless_rendering.explain_failure("an OpenGL platform library has not been loaded") is None
