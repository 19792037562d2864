"""Whether a replay buffer fits into memory: the arithmetic in the message, and the memory that a process may use."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest

from rl_training.config.algorithms.dqn import DQNConfig, PrioritizedReplayConfig
from rl_training.config.algorithms.off_policy import HindsightConfig
from rl_training.data.buffer_memory import measure_available_memory
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer
from rl_training.data.replay_memory import check_memory
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import ConfigError

FRAMES = ObservationEncoder(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8))
CHOICE = ActionCodec(gym.spaces.Discrete(3))
GB = 10**9


def config(buffer_size: int, num_envs: int = 1, frame_channels: int | None = None) -> DQNConfig:
    fields = {"buffer_size": buffer_size, "num_envs": num_envs, "frame_channels": frame_channels}
    return DQNConfig(env_id="Frames-v0", total_timesteps=2_000_000, **fields)


def test_the_message_has_the_arithmetic_and_a_size_that_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        check_memory(config(1_000_000), FRAMES, CHOICE, available=8 * GB)
    # 4 * 84 * 84 = 28,224; 2 * 28,224 + 8 + 4 + 2 = 56,462; .9 * 8e9 / 56,462 = 127,519
    assert str(caught.value) == (
        "buffer_size: 1,000,000 x (2 x 28,224 + 8 + 4 + 2) bytes (observation and next observation, action, reward, "
        "two flags) = 56.5 GB, and this process may use 8.0 GB, of which a tenth is left to everything else; "
        "buffer_size 120,000 would fit; frame_channels: 1, which stores each frame once, would need 8.0 GB"
    )
    check_memory(config(120_000), FRAMES, CHOICE, available=8 * GB)


def test_frames_that_are_stored_once_have_their_own_arithmetic() -> None:
    check_memory(config(1_000_000, frame_channels=1), FRAMES, CHOICE, available=9 * GB)
    with pytest.raises(ConfigError) as caught:
        check_memory(config(1_000_000, frame_channels=1), FRAMES, CHOICE, available=8 * GB)
    # 9/8 * 7,064 + 32 + 8 + 4 + 2 = 7,993; 2 * 4 * 7,064 = 56,512; .9 * 8e9 / 7,993 = 900,788
    assert str(caught.value) == (
        "buffer_size: 1,000,000 x (9/8 x 1 x (7,056 + 8) + 2 x 4 x 4 + 8 + 4 + 2) bytes (new channels and an eighth "
        "for the first ones of episodes; where the channels of observation and next observation are; action, reward, "
        "two flags) + 56,512 = 8.0 GB, and this process may use 8.0 GB, of which a tenth is left to everything else; "
        "buffer_size 900,000 would fit"
    )
    check_memory(config(900_000, frame_channels=1), FRAMES, CHOICE, available=8 * GB)


def test_priorities_count_too() -> None:
    prioritized = config(1_000_000).model_copy(update={"prioritized_replay": PrioritizedReplayConfig()})
    with pytest.raises(ConfigError) as caught:
        check_memory(prioritized, FRAMES, CHOICE, available=8 * GB)
    assert (
        "1,000,000 x (2 x 28,224 + 8 + 4 + 2 + 9) bytes (observation and next observation, action, reward, two "
        in str(caught.value)
    )
    assert "flags, priority) = 56.5 GB" in str(caught.value)


def test_ends_of_episodes_count_too() -> None:
    relabelled = config(1_000_000).model_copy(update={"hindsight": HindsightConfig()})
    with pytest.raises(ConfigError, match=r"\(2 x 28,224 \+ 8 \+ 4 \+ 2 \+ 4\) bytes .*two flags, end of the episode"):
        check_memory(relabelled, FRAMES, CHOICE, available=8 * GB)


@pytest.mark.parametrize(
    ("shape", "frame_channels", "shared"),
    [
        ((4, 84, 84), 1, "8.0 GB"),
        ((12, 84, 84), 1, "8.1 GB"),
        ((84, 84, 3), 3, "23.9 GB"),
        ((84, 84), 1, "8.0 GB"),
    ],
)
def test_the_refusal_of_images_names_the_memory_that_shared_frames_need(
    shape: tuple[int, ...], frame_channels: int, shared: str
) -> None:
    images = ObservationEncoder(gym.spaces.Box(0, 255, shape, np.uint8))
    advice = f"frame_channels: {frame_channels}, which stores each frame once, would need {shared}$"
    with pytest.raises(ConfigError, match=advice):
        check_memory(config(1_000_000), images, CHOICE, available=8 * GB)


def test_vectors_that_do_not_fit_are_told_nothing_of_frames() -> None:
    vectors = ObservationEncoder(gym.spaces.Box(-1, 1, (10_000,)))
    with pytest.raises(ConfigError, match=r"buffer_size 89,000 would fit$"):
        check_memory(config(1_000_000), vectors, CHOICE, available=8 * GB)


@pytest.mark.parametrize(
    ("observation", "frame_channels", "message"),
    [
        (gym.spaces.Box(-1, 1, (4,)), 1, r"got 1, and observations are not images but Box\(-1\.0, 1\.0, "),
        (
            gym.spaces.Dict(a=gym.spaces.Box(0, 255, (8, 8), np.uint8), b=gym.spaces.Discrete(5)),
            1,
            r"frame_channels: got 1, and observations are not images but Dict.*; leave frame_channels out$",
        ),
        (gym.spaces.Box(0, 255, (4, 8, 8), np.uint8), 3, r"got 3, expected a divisor of 4, the channels of "),
        (gym.spaces.Box(0, 255, (4, 8, 8), np.uint8), 8, r"got 8, expected a divisor of 4, the channels of "),
    ],
)
def test_frame_channels_that_do_not_suit_the_observations_are_refused(
    observation: gym.Space, frame_channels: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_memory(config(1_000, frame_channels=frame_channels), ObservationEncoder(observation), CHOICE)


def test_the_suggested_size_is_a_multiple_of_the_environments() -> None:
    with pytest.raises(ConfigError, match=r"buffer_size 119,994 would fit"):
        check_memory(config(1_000_006, num_envs=7), FRAMES, CHOICE, available=8 * GB)
    check_memory(config(119_994, num_envs=7), FRAMES, CHOICE, available=8 * GB)


def test_the_bound_is_sharp() -> None:
    bytes_needed = 1_000 * 56_462
    available = -(-bytes_needed * 10 // 9)
    check_memory(config(1_000), FRAMES, CHOICE, available=available + 1)
    with pytest.raises(ConfigError, match=r"= 0\.0565 GB, and this process may use 0\.0627 GB"):
        check_memory(config(1_000), FRAMES, CHOICE, available=available - 10)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (gym.spaces.Box(-1, 1, (17,)), gym.spaces.Box(-1, 1, (6,))),
        (gym.spaces.Box(0, 255, (84, 84, 3), np.uint8), gym.spaces.Discrete(2)),
        (gym.spaces.Dict(a=gym.spaces.Box(0, 255, (8, 8), np.uint8), b=gym.spaces.Discrete(5)), gym.spaces.Discrete(2)),
    ],
)
def test_the_arithmetic_is_what_the_buffer_takes(observation: gym.Space, action: gym.Space) -> None:
    encoder, codec = ObservationEncoder(observation), ActionCodec(action)
    buffer = ReplayBuffer(1_000, 2, encoder.shape, encoder.dtype, codec.shape, codec.dtype)
    check_memory(config(1_000), encoder, codec, available=buffer.nbytes * 10 // 9 + 10)
    with pytest.raises(ConfigError):
        check_memory(config(1_000), encoder, codec, available=buffer.nbytes * 10 // 9 - 10)


@pytest.mark.parametrize(("shape", "frame_channels"), [((4, 84, 84), 1), ((12, 6, 6), 3), ((7, 9), 1)])
@pytest.mark.parametrize("num_envs", [1, 8])
def test_the_arithmetic_of_frames_is_what_their_buffer_takes(
    shape: tuple[int, ...], frame_channels: int, num_envs: int
) -> None:
    encoder = ObservationEncoder(gym.spaces.Box(0, 255, shape, np.uint8))
    buffer = FrameReplayBuffer(800, num_envs, encoder.shape, frame_channels, CHOICE.shape, CHOICE.dtype)
    sharing = config(800, num_envs, frame_channels)
    check_memory(sharing, encoder, CHOICE, available=buffer.nbytes * 10 // 9 + 10)
    with pytest.raises(ConfigError):
        check_memory(sharing, encoder, CHOICE, available=buffer.nbytes * 10 // 9 - 10)


def group(folder: Path, version: int, limit: int | str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {1: ("limit_in_bytes", "usage_in_bytes", "total_inactive_file"), 2: ("max", "current", "inactive_file")}
    for name, value in zip(names[version][:2], (limit, used), strict=True):
        (folder / f"memory.{name}").write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon {used - cache}\n{names[version][2]} {cache}\n")


def of_process(root: Path, text: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(text)


def test_version_2_takes_the_tightest_of_the_groups_that_hold_the_process(tmp_path: Path) -> None:
    of_process(tmp_path, "0::/user/job\n")
    groups = tmp_path / "sys/fs/cgroup"
    group(groups / "user/job", 2, "max", 5_000_000, 0)
    assert measure_available_memory(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.1)
    group(groups / "user", 2, 50_000_000, 30_000_000, 4_000_000)
    assert measure_available_memory(tmp_path) == 24_000_000
    group(groups / "user/job", 2, 20_000_000, 5_000_000, 1_000_000)
    assert measure_available_memory(tmp_path) == 16_000_000
    group(groups / "user/job", 2, 20_000_000, 25_000_000, 0)
    assert measure_available_memory(tmp_path) == 0


def test_version_1_has_its_own_names_and_mount(tmp_path: Path) -> None:
    of_process(tmp_path, "9:name=systemd:/other\n4:cpu,memory:/job\n0::/\n")
    group(tmp_path / "sys/fs/cgroup/memory/job", 1, 9_223_372_036_854_771_712, 30_000_000, 0)
    assert measure_available_memory(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.1)
    group(tmp_path / "sys/fs/cgroup/memory/job", 1, 70_000_000, 30_000_000, 2_000_000)
    assert measure_available_memory(tmp_path) == 42_000_000


@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_the_own_group_is_the_outermost_that_is_seen(tmp_path: Path, version: int) -> None:
    of_process(tmp_path, "4:memory:/docker/0123\n" if version == 1 else "0::/../../docker/0123\n")
    group(tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else ""), version, 70_000_000, 30_000_000, 0)
    assert measure_available_memory(tmp_path) == 40_000_000


def test_without_control_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert measure_available_memory(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.1)


def test_a_limit_of_the_address_space_counts() -> None:
    code = (
        "import resource, psutil; from rl_training.data.buffer_memory import measure_available_memory\n"
        "vms = psutil.Process().memory_info().vms\n"
        "resource.setrlimit(resource.RLIMIT_AS, (vms + 50_000_000, resource.RLIM_INFINITY))\n"
        "print(measure_available_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert 30_000_000 < int(done.stdout) <= 50_000_000
