"""The queue of the learning results: what it trains, how it continues, and how it judges two libraries."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.learning.bench import Bench, Written, count_finished
from benchmarks.learning.config_rows import make_config_row
from benchmarks.learning.episodes import play_episodes
from benchmarks.learning.peer_rows import judge, make_peer_row
from benchmarks.learning.peer_tasks import PEER_TASKS, SB3_DEFAULTS, PeerTask
from benchmarks.learning.peers import RandomPolicy
from benchmarks.learning.queue import GROUPS, list_rows, make_rows
from benchmarks.learning.run_random import evaluate_random
from benchmarks.learning.tables import format_peers, format_seeds, judge_seeds
from benchmarks.learning.tasks import TASKS
from rl_training.config.settings import TrainConfig
from rl_training.envs.native.automatic_choice import choose_vectorization
from rl_training.experiment.loading import config_from_mapping, load_config

PYTHON = Path(sys.executable)
ACROBOT = next(task for task in TASKS if task.name == "dqn-acrobot")
HOPPER = replace(next(task for task in PEER_TASKS if task.name == "parity-ppo-Hopper-v5"), seeds=5)


class Counted:
    """A training that counts how often it runs, and waits for `go` first if there is one."""

    def __init__(self, number: int, go: asyncio.Event | None = None, fails: bool = False) -> None:
        self.name, self.number, self.go, self.fails, self.runs = "counted", number, go, fails, 0

    def key(self) -> str:
        return f"counted-{self.number}"

    async def run(self, work: Path, package: Path) -> dict:
        if self.go is not None:
            await self.go.wait()
        self.runs += 1
        if self.fails:
            raise RuntimeError("it broke")
        return {"return_mean": float(self.number)}


class CountedRow:
    """A row that keeps what it was given to write."""

    def __init__(self, name: str, *trainings: Counted, fault: str | None = None) -> None:
        self.name, self.trainings, self.fault, self.written = name, trainings, fault, []

    def write(self, runs, about, results):
        self.written.append([run["return_mean"] for run in runs])
        return Written("done", self.fault)


def make_bench(tmp_path: Path, *rows: CountedRow) -> Bench:
    tmp_path.mkdir(exist_ok=True)
    bench = Bench(rows, {}, tmp_path, tmp_path, tmp_path)
    bench.load()
    return bench


def test_a_queue_that_is_interrupted_continues_with_what_is_missing(tmp_path):
    async def interrupt() -> None:
        first, second = Counted(1), Counted(2, go=asyncio.Event())
        row = CountedRow("row", first, second)
        running = asyncio.create_task(make_bench(tmp_path, row).run())
        while not count_finished(row, tmp_path):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (first.runs, second.runs, row.written) == (1, 0, [])

    asyncio.run(interrupt())
    first, second = Counted(1), Counted(2)
    row = CountedRow("row", first, second)
    bench = make_bench(tmp_path, row)
    asyncio.run(bench.run())
    assert (first.runs, second.runs, row.written, bench.faults) == (0, 1, [[1.0, 2.0]], [])


def test_a_training_that_two_rows_share_runs_once(tmp_path):
    shared = Counted(1)
    rows = CountedRow("a", shared, Counted(2)), CountedRow("b", Counted(1), fault="missed")
    bench = make_bench(tmp_path, *rows)
    asyncio.run(bench.run())
    assert [row.written for row in rows] == [[[1.0, 2.0]], [[1.0]]]
    assert shared.runs + rows[1].trainings[0].runs == 1
    assert bench.faults == ["b: missed"]


def test_a_training_that_fails_stops_no_other_and_its_row_is_not_written(tmp_path):
    rows = CountedRow("a", Counted(1, fails=True), Counted(2)), CountedRow("b", Counted(3))
    bench = make_bench(tmp_path, *rows)
    asyncio.run(bench.run())
    assert [row.written for row in rows] == [[], [[3.0]]]
    assert bench.faults == ["counted: seed 1 failed, so its row is not written"]


@pytest.mark.parametrize(
    ("ours", "theirs", "no_worse"),
    [
        ([100.0, 100.0], [100.0, 100.0], True),
        ([91.0, 91.0], [100.0, 100.0], False),  # the interval is [-9, -9]
        ([60.0, 109.0], [100.0, 90.0], False),  # 84.5 of at least 85.5, and the interval includes 0
        ([120.0, 60.0, 92.0], [100.0, 90.0, 98.0], True),  # 90.7 of at least 86.4, and the interval includes 0
        ([-50.0, -50.0], [-40.0, -40.0], False),  # theirs is below random, so ours must reach theirs
        ([-40.0, -40.0], [-40.0, -40.0], True),
    ],
)
def test_no_worse_needs_both_an_interval_that_reaches_zero_and_most_of_the_way(ours, theirs, no_worse):
    assert judge(ours, theirs, 0.0)["no_worse"] is no_worse


def test_the_way_begins_at_the_score_of_a_random_policy():
    found = judge([-95.0, -85.0], [-80.0, -90.0], -500.0)
    assert (found["ours"], found["theirs"], found["random"]) == (-90.0, -85.0, -500.0)
    assert found["needed"] == pytest.approx(-85.0 - 41.5, rel=1e-12)
    assert found["difference"]["value"] == -5.0
    assert found["no_worse"] is True


def test_the_seeds_are_good_if_one_in_ten_is_below_the_bar_and_none_far_below():
    # The bar is 100 and random is 0, so the lowest must reach 90.
    assert judge_seeds(100.0, 0.0, {"seeds": 20, "at_bar": 18, "lowest": 90.0}) == (90.0, True)
    assert judge_seeds(100.0, 0.0, {"seeds": 20, "at_bar": 17, "lowest": 95.0}) == (90.0, False)
    assert judge_seeds(100.0, 0.0, {"seeds": 20, "at_bar": 19, "lowest": 89.0}) == (90.0, False)


def test_bare_defaults_are_algorithm_environment_and_steps_alone(tmp_path):
    tasks = [task for task in PEER_TASKS if task.group == "defaults"]
    assert len(tasks) == 17
    for task in tasks:
        settings = make_peer_row(task, PYTHON, tmp_path, "code").ours[0].settings
        given = {"algo": task.algo, "env_id": task.env_id, "total_timesteps": task.steps}
        assert settings == choose_vectorization(config_from_mapping(given | {"seed": 0}))
        (path,) = (tmp_path / "configs").glob(f"{task.name}-*.yaml")
        assert path.read_text().count("\n") == 3


def test_another_version_of_a_task_leaves_the_config_of_waiting_seeds_as_it_is(tmp_path):
    seed = make_peer_row(HOPPER, PYTHON, tmp_path, "code").ours[0]
    other = make_peer_row(replace(HOPPER, settings={**HOPPER.settings, "gamma": 0.5}), PYTHON, tmp_path, "code").ours[0]
    assert (seed.settings.gamma, other.settings.gamma) == (0.99, 0.5)
    assert load_config(seed.config, seed.sets).gamma == 0.99
    assert load_config(other.config, other.sets).gamma == 0.5


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac", "td3", "tqc"])
def test_equal_settings_name_every_setting_of_the_algorithm(algo):
    """A default of ours that changes must not change a comparison at equal settings."""
    config = config_from_mapping({"algo": algo, "env_id": "CartPole-v1", "total_timesteps": 10_000})
    without_effect = {"algo", "ranks", "target_kl", "frame_channels", "sequence_length"}
    fields = set(type(config).model_fields) - set(TrainConfig.model_fields) - without_effect
    assert fields <= set(SB3_DEFAULTS[algo])
    assert {"num_envs", "batch_size"} <= set(SB3_DEFAULTS[algo])
    elsewhere = {"body", "recurrent", "recurrent_size"}
    assert set(SB3_DEFAULTS[algo]["network"]) == set(type(config.network).model_fields) - elsewhere


def test_equal_settings_of_quantile_dqn_change_those_of_dqn():
    changed = {name: value for name, value in SB3_DEFAULTS["qrdqn"].items() if value != SB3_DEFAULTS["dqn"][name]}
    assert set(changed) == {"learning_rate", "exploration", "quantiles", "adam_epsilon", "max_grad_norm"}
    task = next(task for task in PEER_TASKS if task.peer_algo == "qrdqn")
    assert (task.algo, task.title, task.name) == ("dqn", "QRDQN LunarLander-v3", "parity-qrdqn-LunarLander-v3")
    assert len({task.name for task in PEER_TASKS}) == len(PEER_TASKS)


def test_parity_and_defaults_share_the_trainings_of_the_peer(tmp_path):
    tasks = [task for task in PEER_TASKS if (task.algo, task.env_id, task.steps) == ("ppo", "Hopper-v5", 100_000)]
    parity, bare = (make_peer_row(task, PYTHON, tmp_path, "code") for task in tasks)
    assert [seed.key() for seed in bare.theirs] == [seed.key() for seed in parity.theirs[:3]]
    assert not {seed.key() for seed in bare.ours} & {seed.key() for seed in parity.ours}


def test_a_peers_training_is_known_by_all_that_decides_it(tmp_path):
    def key(steps: int = 10, **arguments: float) -> str:
        task = PeerTask("parity", "ppo", "CartPole-v1", steps, 1, 1.0, {}, arguments)
        return make_peer_row(task, PYTHON, tmp_path, "code").theirs[0].key()

    assert key() == key()
    assert len({key(), key(steps=20), key(gamma=0.9)}) == 3


def test_groups_are_trained_in_their_order_and_short_trainings_first(tmp_path):
    rows = make_rows((*PEER_TASKS, *TASKS), GROUPS, PYTHON, tmp_path, "code")
    places = [(GROUPS.index(row.task.group), row.minutes) for row in rows]
    assert places == sorted(places)
    assert len(rows) == len(PEER_TASKS) + len([task for task in TASKS if task.group != "robotics"])
    assert len({row.name for row in rows}) == len(rows)


def test_the_list_says_what_is_missing(tmp_path):
    row = make_peer_row(HOPPER, PYTHON, tmp_path, "code")
    assert list_rows([row], tmp_path, tmp_path) == [
        "parity    parity-ppo-Hopper-v5: 0 of 11 trainings are finished, 11 missing, no file"
    ]
    for training in row.trainings:
        (tmp_path / f"{training.key()}.json").write_text("{}")
    (tmp_path / "parity-ppo-Hopper-v5.json").write_text("{}")
    assert list_rows([row], tmp_path, tmp_path) == [
        "parity    parity-ppo-Hopper-v5: 11 of 11 trainings are finished, complete, written"
    ]


def test_a_row_beside_a_peer_is_written_from_the_runs_of_both(tmp_path):
    row = make_peer_row(HOPPER, PYTHON, tmp_path, "code")
    runs = [
        {
            "return_mean": float(value),
            "health": [],
            "training_returns": [[1_000, 0.0], [2_000, value + 0.5]],  # of ours
            "training_return": value - 0.5,  # of theirs
        }
        for value in (10, 0, 5, 1, 6, 2, 7, 3, 8, 4, 9)
    ]
    written = row.write(runs, {"command": "x"}, tmp_path)
    assert written.fault == "worse than Stable-Baselines3: ours 2.0, theirs 7.0, random 10.0"
    found = json.loads((tmp_path / "parity-ppo-Hopper-v5.json").read_text())
    assert [run["return_mean"] for run in found["ours"]] == [0, 1, 2, 3, 4]
    assert (found["summary"]["difference"]["value"], found["command"]) == (-5.0, "x")
    low, high = (f"{found['summary']['difference'][end]:.1f}" for end in ("low", "high"))
    assert format_peers([HOPPER, PEER_TASKS[1]], {HOPPER: found}).splitlines()[2:] == [
        f"| PPO Hopper-v5 | 100,000 | 5 | 2.0 (0.0 to 4.0) | 7.0 (5.0 to 9.0) | 10.0 | -5.0 [{low}, {high}] | **no** "
        "| 2.5 and 6.5 | silent |",
        "",
        "Not measured yet: PPO HalfCheetah-v5 (100,000 steps).",
    ]
    for run in found["theirs"]:
        del run["training_return"]
    assert "| **no** | not recorded | silent |" in format_peers([HOPPER], {HOPPER: found})


def test_a_row_of_many_seeds_shows_the_final_policy_and_the_promoted_one(tmp_path):
    promoted = {"seeds": 20, "at_bar": 20, "lowest": -79.0, "iqm": -75.0}
    summary = {"seeds": 20, "at_bar": 18, "lowest": -120.0, "iqm": -76.0, "promoted": promoted, "random": -499.0}
    assert format_seeds([ACROBOT], {ACROBOT: {"summary": summary}}).splitlines()[2:] == [
        "| DQN Acrobot-v1 | 20 | -80 | -121.9 | -120.0 | 18 of 20 | yes | -75.0 | -79.0 | 20 of 20 |"
    ]
    few = {"summary": summary | {"seeds": 5}}
    assert format_seeds([ACROBOT], {ACROBOT: few}) == "Not measured yet: DQN Acrobot-v1."


def test_a_random_policy_never_reaches_the_top_of_the_mountain():
    config = config_from_mapping({"algo": "dqn", "env_id": "MountainCar-v0", "total_timesteps": 10_000})
    small = config.replace(max_episode_steps=20)
    found = evaluate_random(small)
    assert (found["episodes"], set(found["returns"])) == (100, {-20.0})


@pytest.mark.parametrize("env_id", ["case_envs:Strict-v0", "case_envs:StrictParts-v0"])
def test_a_random_policy_takes_allowed_actions_where_there_is_a_mask(env_id):
    """The environment raises at any other; of two allowed choices, one in two earns 1: 8 of 10 on average."""
    masked = {"algo": "ppo", "env_id": env_id, "total_timesteps": 10_000, "action_mask": "info"}
    policy = RandomPolicy(config_from_mapping(masked))
    assert policy.settings["action_mask"] == "info"
    found = evaluate_random(config_from_mapping(masked | policy.settings))
    assert 7.5 < found["return_mean"] < 8.5


def test_episodes_do_not_depend_on_how_many_are_played_side_by_side():
    seeds = [3, 1, 4, 1, 5]

    def push_left(observations):
        return [0] * len(observations)

    one, three = (play_episodes("CartPole-v1", seeds, push_left, at_once=count) for count in (1, 3))
    assert one == three
    assert one[1] == one[3]
    assert all(8 <= value <= 10 for value in one)  # a pole that is pushed to one side falls within ten steps


def test_a_config_row_ends_with_the_random_policy(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("algo: ppo\nenv_id: CartPole-v1\ntotal_timesteps: 256\nnum_envs: 2\n")
    row = make_config_row(path, None, range(2), (), "code")
    assert [training.name for training in row.trainings] == [*[row.seeds[0].name] * 2, "random-CartPole-v1"]
