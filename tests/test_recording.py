"""Films that a user records, and episodes in a window: complete episodes at their own speed, with their results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import filmed_envs  # noqa: F401  # registers
import gymnasium as gym
import pytest
from mlflow_store import BAD, GOOD, make_run, write_policy
from PIL import Image

import rl_training
from rl_training.cli.app import run
from rl_training.errors import EnvironmentFault, EnvironmentRefused, UserError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.seeding import episode_seeds

SMALL: dict[str, Any] = {
    "algo": "ppo",
    "total_timesteps": 32,
    "num_envs": 1,
    "rollout_steps": 32,
    "batch_size": 32,
    "epochs": 1,
    "network": {"hidden": [4]},
}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def trained(env: str, **settings: Any) -> Path:
    """The directory of a run in an environment of `filmed_envs`."""
    config = config_from_mapping({**SMALL, "env_id": f"filmed_envs:{env}-v0", **settings})
    return DefaultExperimentManager().setup(config).train().run_dir


def frames(path: Path) -> list[tuple[int, int]]:
    """The shade and the duration of each frame."""
    with Image.open(path) as film:
        assert film.format == "WEBP"
        found = []
        for i in range(film.n_frames):
            film.seek(i)
            shade = film.convert("RGB").getpixel((0, 0))[0]
            found.append((shade, film.info["duration"]))
        return found


def is_even(seed: int) -> bool:
    env = gym.make("Filmed-v0")
    observation, _ = env.reset(seed=seed)
    return observation[0] % 2 == 0


def test_films_show_complete_episodes_with_their_results_in_the_name() -> None:
    source = trained("Filmed", env_kwargs={"length": 130})
    played = rl_training.record(source, episodes=2)
    assert [episode.seed for episode in played] == list(episode_seeds(0, "held_out", 2))
    assert {(episode.return_, episode.length, episode.cut) for episode in played} == {(130.0, 130, False)}
    assert [episode.success for episode in played] == [is_even(episode.seed) for episode in played]
    for number, episode in enumerate(played, 1):
        success = "success" if episode.success else "failure"
        name = f"Filmed-v0_step=32_episode={number}_return=130_length=130_{success}.webp"
        assert episode.film == Path.cwd() / "films" / name
        # from the reset to the last step, 10 frames a second
        assert frames(episode.film) == [(step, 100) for step in range(131)]
    assert len(list(Path("films").iterdir())) == 2


def test_a_frame_rate_that_is_no_whole_number_of_milliseconds_is_kept() -> None:
    (episode,) = rl_training.record(trained("Fast", env_kwargs={"length": 59}))
    assert episode.film is not None
    shown = frames(episode.film)
    assert (len(shown), sum(duration for _, duration in shown)) == (60, 1000)


def test_films_show_the_environment_of_evaluation_with_its_options_and_limit() -> None:
    source = trained(
        "Filmed",
        evaluation={"env_kwargs": {"length": 90}, "reset_options": {"start": 40}, "max_episode_steps": 20},
    )
    (episode,) = rl_training.record(source)
    assert episode.film is not None
    assert episode.film.name == "Filmed-v0_step=32_episode=1_return=20_length=20_cut.webp"
    assert (episode.cut, episode.success) == (True, None)
    assert [shade for shade, _ in frames(episode.film)] == list(range(40, 61))


@pytest.mark.parametrize("env_id", ["Filmed-v0", "__main__:Filmed-v0"])
def test_an_environment_that_only_this_process_knows_is_filmed(env_id: str) -> None:
    config = config_from_mapping({**SMALL, "env_id": env_id, "env_kwargs": {"length": 12}})
    (episode,) = rl_training.record(DefaultExperimentManager().setup(config).train().run_dir)
    assert episode.film is not None
    assert frames(episode.film) == [(step, 100) for step in range(13)]


def test_the_command_films_the_episodes_that_evaluate_plays(capfd: Any) -> None:
    run_dir, _ = make_run()
    source = str(write_policy(run_dir, 100, BAD).path)
    judged = rl_training.evaluate(source, episodes=2, seed=3)
    assert run(["record", source, "--episodes", "2", "--seed", "3", "--out", "here/too", "--json"]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    played = json.loads(line)["episodes"]
    assert [episode["return"] for episode in played] == list(judged.returns)
    assert [episode["seed"] for episode in played] == list(judged.seeds)
    assert all(episode["success"] is None for episode in played)
    before = {Path(episode["film"]): Path(episode["film"]).read_bytes() for episode in played}
    assert run(["record", source, "--episodes", "2", "--seed", "3", "--out", "here/too"]) == 0
    assert capfd.readouterr().out.splitlines() == [str(film) for film in before]
    assert {film: film.read_bytes() for film in Path.cwd().joinpath("here/too").iterdir()} == before


def test_what_cannot_be_filmed_is_one_line(capfd: Any) -> None:
    source = trained("Blind")
    with pytest.raises(EnvironmentRefused, match="can't be filmed: its render modes are human; expected rgb_array"):
        rl_training.record(source)
    assert run(["record", str(source)]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
    assert not Path("films").exists()
    with pytest.raises(EnvironmentFault, match="render"):
        rl_training.record(trained("NoPicture"))
    with pytest.raises(ValueError, match="got 0 episodes, expected at least 1"):
        rl_training.record(source, episodes=0)


def test_a_folder_that_cannot_be_written_is_named() -> None:
    Path("taken").touch()
    with pytest.raises(UserError, match=r"taken/.*can't be written: .*; choose another folder for films"):
        rl_training.record(trained("Filmed"), out="taken")


def cartpole() -> str:
    run_dir, _ = make_run()
    return str(write_policy(run_dir, 100, GOOD).path)


def test_episodes_are_shown_in_a_window(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a window that nobody sees
    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.metadata", HURRIED)
    source = cartpole()
    judged = rl_training.evaluate(source, episodes=1)
    assert run(["enjoy", source]) == 0
    returned = judged.returns[0]
    assert capfd.readouterr().out == f"episode 1: return {returned:.6g}, length {judged.lengths[0]}\n"


HURRIED = {"render_modes": ["human", "rgb_array"], "render_fps": 5_000}


def test_a_window_without_a_display_or_a_package_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    source = cartpole()
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert run(["enjoy", source]) == 2
    assert capfd.readouterr().err == (
        "error: there is no display to show a window on (DISPLAY is not set); `rl-training record` writes films "
        "instead\n"
    )
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert run(["enjoy", source]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("pygame is not installed; run: pip install 'rl-training[render]'")
    assert run(["enjoy", str(trained("Fast"))]) == 2
    assert "its render modes are rgb_array; expected human" in capfd.readouterr().err.splitlines()[-1]
    assert os.environ["DISPLAY"] == ":0"
