"""Engines of sweeps that run elsewhere: how they are polled and stopped, and what they refuse before they start."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from rl_training import __version__
from rl_training.errors import ConfigError, UserError
from rl_training.flows.sweep_engines.opening import open_engine, require_engine
from rl_training.flows.sweep_engines.polled_engine import PolledEngine
from rl_training.flows.sweep_engines.segment_task import describe_place, require_same_place
from rl_training.flows.sweep_engines.work_pool import make_job_variables
from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.sweep_config import EngineConfig, ResourcesConfig, SweepConfig
from tests.sweep_segments import PPO, make_segment

SEGMENTS = [make_segment({**PPO, "seed": seed}, seed=seed) for seed in range(3)]
KEYS = [segment.key for segment in SEGMENTS]


def make_record(seed: int) -> RunRecord:
    return RunRecord(
        seed=seed,
        run_uid=f"{seed:032x}",
        run_id=None,
        run_dir="/nowhere",
        state="complete",
        num_timesteps=512,
        evaluations={},
        policy_sha256=None,
    )


class ScriptedCluster:
    """Answers each poll from a script; after a stop, every segment that is left ends as `after_stop` says."""

    def __init__(self, polls: list[dict[str, RunRecord | Lost]], after_stop: dict[str, RunRecord | Lost]) -> None:
        self.polls, self.after_stop = polls, after_stop
        self.events: list[tuple[str, Any]] = []

    def submit(self, segment: Segment) -> str:
        self.events.append(("submit", segment.key))
        return f"handle of {segment.key}"

    def poll(self, handles: Mapping[str, str]) -> Iterator[tuple[str, RunRecord | Lost]]:
        stopped = any(event == "stop" for event, _ in self.events)
        ended = self.after_stop if stopped else self.polls.pop(0)
        yield from ((key, ended[key]) for key in handles if key in ended)

    def stop(self, handles: Sequence[str]) -> None:
        self.events.append(("stop", list(handles)))

    def close(self) -> None:
        self.events.append(("close", None))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.flows.sweep_engines.polled_engine.POLL_SECONDS", 0.001)


def test_segments_are_yielded_as_they_end_and_each_once() -> None:
    lost = Lost("its node died")
    cluster = ScriptedCluster([{}, {KEYS[2]: make_record(2)}, {}, {KEYS[0]: lost, KEYS[1]: make_record(1)}], {})
    engine = PolledEngine(cluster)
    outcomes = [(segment.key, outcome) for segment, outcome in engine.run(SEGMENTS, StopFlag())]
    assert outcomes == [(KEYS[2], make_record(2)), (KEYS[0], lost), (KEYS[1], make_record(1))]
    engine.close()
    assert cluster.events == [*(("submit", key) for key in KEYS), ("close", None)]


def test_a_stop_lets_segments_save_and_yields_those_alone_that_were_complete() -> None:
    stop = StopFlag()
    cluster = ScriptedCluster([{KEYS[0]: make_record(0)}], {KEYS[1]: Lost("it was stopped"), KEYS[2]: make_record(2)})
    engine, yielded = PolledEngine(cluster), []
    for segment, _ in engine.run(SEGMENTS, stop):
        yielded.append(segment.key)
        stop.request("signal")
    assert yielded == [KEYS[0], KEYS[2]]
    assert cluster.events[3:] == [("stop", [f"handle of {KEYS[1]}", f"handle of {KEYS[2]}"])]


def test_segments_that_still_run_are_stopped_if_the_sweep_fails() -> None:
    cluster = ScriptedCluster([{KEYS[0]: make_record(0)}], {})
    run = PolledEngine(cluster).run(SEGMENTS, StopFlag())
    next(run)
    with pytest.raises(RuntimeError, match="of the database"):
        run.throw(RuntimeError("an error of the database"))  # type: ignore[attr-defined]
    assert cluster.events[3:] == [("stop", [f"handle of {KEYS[1]}", f"handle of {KEYS[2]}"])]


@pytest.mark.parametrize(
    ("engine", "module", "message"),
    [
        ("ray", "ray", "engine ray needs Ray: pip install 'rl-training[ray]'"),
        ("ray", "prefect_ray", "engine ray needs prefect-ray: pip install 'rl-training[ray]'"),
        ("dask", "distributed", "engine dask needs Dask: pip install 'rl-training[dask]'"),
        ("dask", "prefect_dask", "engine dask needs prefect-dask: pip install 'rl-training[dask]'"),
    ],
)
def test_an_engine_whose_extra_is_missing_is_refused_by_one_sentence_that_names_it(
    engine: Any, module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ray", "prefect_ray", "distributed", "prefect_dask"):  # whatever this environment has
        monkeypatch.setitem(sys.modules, name, pytest)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as refused:
        open_engine(SweepConfig(config="x", method="grid", engine=EngineConfig(name=engine)))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("name", "address", "message"),
    [
        ("ray", "10.0.0.5:6379", "engine.address: got 10.0.0.5:6379, whose nodes must reach the Prefect server"),
        ("dask", "tls://head:8786", "engine.address: got tls://head:8786, whose nodes must reach"),
        ("work_pool", None, "engine work_pool needs a Prefect server with workers; set PREFECT_API_URL"),
        ("local", "10.0.0.5", "engine.address: got '10.0.0.5', and the engine local has no address"),
        ("ray", None, None),
        ("ray", "auto", None),
        ("ray", "127.0.0.1:6379", None),
        ("dask", "tcp://localhost:8786", None),
        ("dask", "tcp://[::1]:8786", None),
        ("local", None, None),
    ],
)
def test_without_a_prefect_server_of_the_user_all_nodes_must_be_of_this_machine(
    name: Any, address: str | None, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ray", "prefect_ray", "distributed", "prefect_dask"):
        monkeypatch.setitem(sys.modules, module, pytest)
    from prefect.settings import PREFECT_API_URL, temporary_settings

    engine = EngineConfig(name=name, address=address)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        if message is None:
            require_engine(engine)
            return
        with pytest.raises(UserError) as refused:
            require_engine(engine)
    assert str(refused.value).startswith(message)
    if name == "local":
        return
    with temporary_settings({PREFECT_API_URL: "http://prefect:4200/api"}):
        require_engine(engine)


def test_a_node_of_another_version_or_that_logs_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@mlflow:5000")
    place = describe_place()
    assert place == {"tracking_uri": "http://mlflow:5000", "version": __version__}
    require_same_place(**place)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other:5000")
    with pytest.raises(ConfigError, match=r"logs to http://other:5000, and the sweep to http://mlflow:5000"):
        require_same_place(**place)
    with pytest.raises(ConfigError, match=rf"has rl_training {__version__}, and the sweep was started with 0\.0\.1"):
        require_same_place(place["tracking_uri"], "0.0.1")


def test_a_work_pool_reserves_memory_by_docker_alone_and_no_gpus() -> None:
    assert make_job_variables("process", ResourcesConfig(cpus=4)) == {}
    assert make_job_variables("docker", ResourcesConfig(memory_gb=1.5)) == {"mem_limit": "1500000000b"}
    with pytest.raises(ConfigError, match=r"resources.memory_gb: got 2, and a work pool of type process"):
        make_job_variables("process", ResourcesConfig(memory_gb=2.0))
    with pytest.raises(ConfigError, match=r"resources.gpus: got 0.5, and the engine work_pool"):
        make_job_variables("docker", ResourcesConfig(gpus=0.5))
