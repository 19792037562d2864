"""Films of an evaluation episode: what they show, how large they are, and that nothing else depends on them."""

import io
import json
import logging

import numpy as np
import pytest
from filmed_envs import Filmed
from mlflow_store import GOOD, make_run, write_policy
from PIL import Image

from rl_training.api.films import episode_film
from rl_training.api.films.filmed_env import can_be_filmed
from rl_training.api.held_out_evaluation import evaluate_held_out
from rl_training.errors import EnvironmentFault
from rl_training.experiment.loading import config_from_mapping
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.tracking.metric_log import MetricLog


class Still:
    """A policy that always does the same."""

    observation_space, action_space = Filmed.observation_space, Filmed.action_space

    def act(self, observations):
        return [np.int64(0)] * len(observations)


def config_of(env_id, env_kwargs=None, **settings):
    mapping = {"algo": "ppo", "env_id": env_id, "env_kwargs": env_kwargs or {}, "total_timesteps": 100, **settings}
    return config_from_mapping(mapping)


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch):
    monkeypatch.setattr(episode_film, "PLAY_SECONDS", 60.0)


def filmed(env, seed=1, **env_kwargs):
    film = Image.open(
        io.BytesIO(episode_film.film_episode(Still(), config_of(f"filmed_envs:{env}-v0", env_kwargs), seed))
    )
    frames = []
    for i in range(film.n_frames):
        film.seek(i)
        frames.append((film.convert("RGB").getpixel((0, 0))[0], film.info["duration"]))
    return film, frames


def test_a_short_episode_is_shown_completely_and_at_its_own_speed():
    film, frames = filmed("Filmed", length=30)
    assert film.size == (320, 213)
    assert [grey for grey, _ in frames] == list(range(31))  # from the reset to the last step
    assert {duration for _, duration in frames} == {100}  # 10 frames a second


def test_a_film_shows_the_environment_of_evaluation_and_starts_with_its_options():
    config = config_of(
        "CartPole-v1",
        reset_options={"start": 20},
        evaluation={"env_id": "filmed_envs:Filmed-v0", "env_kwargs": {"length": 25}},
    )
    assert can_be_filmed(config)
    film = Image.open(io.BytesIO(episode_film.film_episode(Still(), config, 1)))
    assert (film.n_frames, film.convert("RGB").getpixel((0, 0))[0]) == (6, 20)


def test_a_long_episode_is_shown_in_fewer_frames_at_equal_distances():
    _, frames = filmed("Filmed", length=250)
    assert [grey for grey, _ in frames] == [*range(0, 250, 4), 250]
    assert {duration for _, duration in frames} == {400}


def test_a_film_that_is_too_large_loses_every_second_frame(monkeypatch):
    _, frames = filmed("Noise", length=30)
    whole = len(episode_film.film_episode(Still(), config_of("filmed_envs:Noise-v0", {"length": 30}), 1))
    monkeypatch.setattr(episode_film, "MOST_BYTES", whole // 3)
    data = episode_film.film_episode(Still(), config_of("filmed_envs:Noise-v0", {"length": 30}), 1)
    assert (len(frames), Image.open(io.BytesIO(data)).n_frames) == (31, 8)
    assert len(data) < whole // 3


def test_an_episode_that_takes_long_is_shown_in_part(monkeypatch):
    monkeypatch.setattr(episode_film, "PLAY_SECONDS", 1.0)
    _, frames = filmed("Filmed", length=10**6)
    assert 2 <= len(frames) <= episode_film.MOST_FRAMES + 1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Hangs", "gave no answer within 1 s"),
        ("Dies", "its worker process ended with exit code 3"),
        ("NamesItsToken", r"RuntimeError: no display for \*\*\*"),
        ("NoPicture", r"render\(\) returned None; expected uint8 \[height, width, 3\]"),
    ],
)
def test_a_renderer_that_fails_is_named(env, message, monkeypatch):
    monkeypatch.setattr(episode_film, "ANSWER_SECONDS", 1.0 if env == "Hangs" else 300.0)
    monkeypatch.setattr("rl_training.envs.vector.masked_vector_env.CLOSE_SECONDS", 0.5)
    with pytest.raises(EnvironmentFault, match=message):
        filmed(env, token="CASE-SECRET")


def test_a_stop_ends_a_film():
    stop = StopFlag()
    stop.request("signal")
    with pytest.raises(StopTraining):
        episode_film.film_episode(Still(), config_of("filmed_envs:Filmed-v0"), 1, stop)


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "expected"),
    [
        ("CartPole-v1", {}, True),
        ("filmed_envs:Filmed-v0", {}, True),
        ("filmed_envs:Filmed-v0", {"render_mode": "human"}, False),
        ("filmed_envs:Blind-v0", {}, False),
        ("case_envs:Plain-v0", {}, True),
    ],
)
def test_only_what_can_be_rendered_is_filmed(env_id, env_kwargs, expected):
    assert can_be_filmed(config_of(env_id, env_kwargs)) is expected


def judged(settings):
    run_dir, config = make_run(evaluation={"final_episodes": 10, **settings})
    checkpoint = write_policy(run_dir, 100, GOOD)
    log = MetricLog(run_dir)
    evaluation = evaluate_held_out(checkpoint, config, run_dir, log)
    log.close()
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return run_dir / "artifacts", evaluation, [(line["step"], line["metrics"]) for line in lines]


def test_the_film_changes_no_result_and_its_failure_is_a_warning(monkeypatch, caplog):
    artifacts, evaluation, recorded = judged({"video": False})
    assert [path.name for path in artifacts.iterdir()] == ["evaluation.json"]
    assert recorded == [(100, evaluation.metrics("heldout"))]

    monkeypatch.setattr(episode_film, "PLAY_SECONDS", 0.5)
    with_film = judged({})
    assert with_film[1:] == (evaluation, recorded)
    film = with_film[0] / "evaluation_episode.gif"
    assert sorted(path.name for path in with_film[0].iterdir()) == ["evaluation.json", film.name]
    assert film.read_bytes().startswith(b"GIF89a")
    assert film.stat().st_size < 300_000

    monkeypatch.setattr(episode_film, "film_episode", lambda *args: 1 / 0)
    with caplog.at_level(logging.WARNING):
        without_film = judged({})
    assert without_film[1:] == (evaluation, recorded)
    assert [record.getMessage() for record in caplog.records] == [
        "could not film an episode (`evaluation.video`): division by zero"
    ]
