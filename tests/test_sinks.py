"""Sinks receive every line of a run's metrics once, whatever fails in between, and training notices nothing of them."""

import importlib.util
import json
import logging
import os
import shutil
import signal
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from docs_code import DOCS
from mlflow_store import make_run
from tiny_tasks import PLAIN
from waiting import LIMIT, wait_for

from rl_training import Callback, run_layout
from rl_training.api.train_and_resume import resume_training, train
from rl_training.cli.app import run as command
from rl_training.errors import ConfigError, ModuleRefused
from rl_training.experiment.loading import config_from_mapping
from rl_training.runs.locks import take_over
from rl_training.runs.stopping import StopFlag
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.sinks import following
from rl_training.tracking.sinks.completion import SinkReport, complete_sinks
from rl_training.tracking.sinks.follower import Follower
from rl_training.tracking.sinks.following import follow_metrics
from rl_training.tracking.sinks.lookup import require_usable_sinks
from rl_training.tracking.sinks.progress import load_progress, locate, read_run, write_run

FILE, KILLED, BROKEN = (f"sink_examples:{name}Sink" for name in ("File", "Killed", "Broken"))
EVENTS = f"{run_layout.TENSORBOARD}/events.out.tfevents.metrics"


def sunk_run(*sinks, **settings):
    """Makes a run's directory with these sinks, as training does at its start; returns it."""
    run_dir, config = make_run(tracking={"sinks": list(sinks)}, **settings)
    write_run(run_dir, config)
    return run_dir


def log_lines(run_dir, steps, metric="train/loss", event="update"):
    log = MetricLog(run_dir)
    for step in steps:
        log.log(step, {metric: step / 8}, event)
    log.close()


def make_follower(run_dir, name=FILE):
    return Follower(read_run(run_dir)[0], name)


def pass_all(run_dir, name=FILE):
    follower = make_follower(run_dir, name)
    while follower.advance():
        pass
    follower.close()


def logged(run_dir):
    """Returns the lines of the metrics file that have metrics."""
    lines = [json.loads(line) for line in (run_dir / run_layout.METRICS).read_text().splitlines()]
    return [line for line in lines if line["metrics"]]


def copied(run_dir):
    """Returns the lines that `FileSink` has, without their numbers."""
    lines = [json.loads(line) for line in (run_dir / "copy.jsonl").read_text().splitlines()]
    numbers = [line.pop("number") for line in lines]
    assert numbers == sorted(set(numbers))
    return lines


def read_events(run_dir):
    """Returns (step, time, name, value) of each scalar in the event file, in order; TensorBoard checks each record."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        (event.step, event.wall_time, value.tag, value.tensor.float_val[0])
        for event in EventFileLoader(str(run_dir / EVENTS)).Load()
        for value in event.summary.value
    ]


def scalars(run_dir):
    """Returns what the event file must hold: values as 32-bit numbers."""
    return [
        (line["step"], line["time"], name, struct.unpack("f", struct.pack("f", value))[0])
        for line in logged(run_dir)
        for name, value in line["metrics"].items()
    ]


def test_a_sink_gets_every_line_once_in_order_as_the_file_grows():
    run_dir = sunk_run(FILE)
    follower = make_follower(run_dir)
    for start in (0, 40, 80):
        log_lines(run_dir, range(start, start + 40, 10))
        follower.advance()
    assert [line["step"] for line in copied(run_dir)] == list(range(0, 120, 10))
    assert copied(run_dir) == logged(run_dir)
    assert load_progress(run_dir, FILE)["count"] == 12


def test_a_line_without_metrics_is_counted_and_not_passed_on():
    run_dir = sunk_run(FILE)
    log = MetricLog(run_dir)
    log.log(10, {"train/loss": 1.0}, "update")
    log.close()
    log.log(10, {"train/loss": 2.0}, "update")  # differs when it is repeated: a line of differences alone
    log.log(20, {"train/loss": 3.0}, "update")
    log.close()
    pass_all(run_dir)
    numbers = [json.loads(line)["number"] for line in (run_dir / "copy.jsonl").read_text().splitlines()]
    assert numbers == [0, 2]


@pytest.mark.parametrize("lost", ["everything since the last record", "half a record", "the record of the progress"])
def test_after_a_kill_nothing_is_there_twice_and_nothing_is_lost(lost):
    run_dir = sunk_run(FILE, "tensorboard")
    log_lines(run_dir, range(0, 50, 10))
    for name in (FILE, "tensorboard"):
        pass_all(run_dir, name)
        progress = locate(run_dir, name, ".json")
        before = progress.read_text()
        log_lines(run_dir, range(50, 90, 10)) if name == FILE else None
        if lost == "half a record":
            with (run_dir / ("copy.jsonl" if name == FILE else EVENTS)).open("ab") as file:
                file.write(b"\x07\x00\x00")
        else:
            pass_all(run_dir, name)
            progress.write_text(before if lost.startswith("everything") else "")
        pass_all(run_dir, name)
    assert copied(run_dir) == logged(run_dir)
    assert read_events(run_dir) == scalars(run_dir)
    assert len(scalars(run_dir)) == 9


def test_opening_a_file_with_half_a_record_records_the_size_that_it_has_then():
    run_dir = sunk_run("tensorboard")
    log_lines(run_dir, range(0, 50, 10))
    pass_all(run_dir, "tensorboard")
    size = (run_dir / EVENTS).stat().st_size
    with (run_dir / EVENTS).open("ab") as file:
        file.write(b"\x07\x00\x00")
    pass_all(run_dir, "tensorboard")
    assert load_progress(run_dir, "tensorboard")["state"] == {"size": size}


@pytest.mark.parametrize("state", [{}, {"size": -1}, {"size": "9"}, {"size": True}, {"size": 2**62}, [9], 9])
def test_a_state_that_is_none_of_the_sinks_lets_it_begin_again(state):
    run_dir = sunk_run("tensorboard")
    log_lines(run_dir, range(0, 50, 10))
    pass_all(run_dir, "tensorboard")
    path = locate(run_dir, "tensorboard", ".json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": state}))
    log_lines(run_dir, [50])
    pass_all(run_dir, "tensorboard")
    assert read_events(run_dir) == scalars(run_dir)


def test_a_sink_whose_file_was_removed_begins_again():
    run_dir = sunk_run("tensorboard")
    log_lines(run_dir, range(0, 50, 10))
    pass_all(run_dir, "tensorboard")
    (run_dir / EVENTS).unlink()
    log_lines(run_dir, range(50, 70, 10))
    pass_all(run_dir, "tensorboard")
    assert read_events(run_dir) == scalars(run_dir)
    assert len(scalars(run_dir)) == 7


def test_lines_that_a_power_cut_took_are_replaced_by_those_that_training_repeats():
    run_dir = sunk_run("tensorboard")
    log_lines(run_dir, range(0, 50, 10))
    pass_all(run_dir, "tensorboard")
    path = run_dir / run_layout.METRICS
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    log_lines(run_dir, range(30, 60, 10), "train/other")
    pass_all(run_dir, "tensorboard")
    assert [(step, name) for step, _, name, _ in read_events(run_dir)] == [
        (0, "train/loss"), (10, "train/loss"), (20, "train/loss"),
        (30, "train/other"), (40, "train/other"), (50, "train/other"),
    ]  # fmt: skip


def test_an_error_of_the_sink_loses_nothing(monkeypatch):
    run_dir = sunk_run(FILE)
    log_lines(run_dir, range(0, 50, 10))
    follower = make_follower(run_dir)
    from sink_examples import FileSink

    write, failures = FileSink.write, [2, 1]

    def fail(self, line):
        write(self, line)
        if failures and line.number == failures[-1]:
            failures.pop()
            self.file.flush()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileSink, "write", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            follower.advance()
    follower.advance()
    assert failures == []
    assert copied(run_dir) == logged(run_dir)


def test_a_full_disk_beside_the_progress_loses_nothing(monkeypatch):
    from rl_training.tracking import json_files

    run_dir = sunk_run(FILE)
    log_lines(run_dir, range(0, 50, 10))
    follower = make_follower(run_dir)
    follower.advance()
    log_lines(run_dir, range(50, 90, 10))
    write_json = json_files.write_json

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json_files, "write_json", fail)
    with pytest.raises(OSError, match="No space left"):
        follower.advance()
    monkeypatch.setattr(json_files, "write_json", write_json)
    follower.advance()
    assert copied(run_dir) == logged(run_dir)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Sink", "no module named 'no_such_module'; install it or put its folder on PYTHONPATH"),
        ("__main__:MySink", "can't import it from the program or notebook; move the class to a file"),
    ],
)
def test_a_sink_that_does_not_exist_is_reported_before_training(name, message):
    with pytest.raises(ConfigError, match=r"tracking\.sinks: got ") as caught:
        train(config_from_mapping({"algo": "ppo", **PLAIN, "tracking": {"sinks": [name]}}), track=False)
    assert message in str(caught.value)


def test_tensorboard_that_is_not_installed_is_reported_with_the_extra(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find_spec(name))
    with pytest.raises(ConfigError, match=r"pip install 'rl-training\[tensorboard\]'"):
        require_usable_sinks(["tensorboard"])


def test_the_end_of_a_run_says_what_a_failing_sink_lacks_and_sync_passes_it_on(caplog, monkeypatch):
    monkeypatch.setattr(following, "END_SECONDS", LIMIT)
    run_dir, config = make_run(tracking={"sinks": [BROKEN]})
    with caplog.at_level(logging.WARNING), follow_metrics(run_dir, config, StopFlag()):
        log_lines(run_dir, range(0, 30, 10))
    assert f"sink {BROKEN} has failed: ConnectionError: no such server; training continues" in caplog.text
    assert f"sink {BROKEN} lacks 3 lines of metrics" in caplog.text
    progress = load_progress(run_dir, BROKEN)
    assert (progress["trouble"], progress["count"]) == ("ConnectionError: no such server", 0)

    import sink_examples

    monkeypatch.setattr(sink_examples, "BrokenSink", sink_examples.FileSink)
    (report,) = complete_sinks(run_dir)
    assert (report.missing, report.message) == (0, "")
    assert copied(run_dir) == logged(run_dir)
    assert load_progress(run_dir, BROKEN)["trouble"] == ""


@pytest.mark.slow
def test_a_sink_that_hangs_holds_the_end_of_training_up_for_a_bounded_time(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    monkeypatch.setattr(following, "END_SECONDS", 1.0)
    run_dir, config = make_run(tracking={"sinks": ["sink_examples:HangingSink"]})
    with follow_metrics(run_dir, config, StopFlag()):
        log_lines(run_dir, [10])
        wait_for((tmp_path / "hangs").exists)
    assert "lacks 1 line of metrics" in caplog.text


def tensorboard_run(**settings):
    given = {
        **PLAIN,
        "total_timesteps": 1_000,
        "logging": {"every": 100},
        "tracking": {"sinks": ["tensorboard"]},
        **settings,
    }
    return config_from_mapping({"algo": "ppo", **given})


def test_an_untracked_run_writes_event_files(monkeypatch):
    monkeypatch.setattr(following, "END_SECONDS", LIMIT)
    run_dir = train(tensorboard_run(total_timesteps=500), track=False).run_dir
    events = read_events(run_dir)
    assert events == scalars(run_dir)
    assert {"train/policy_loss", "eval/return_mean", "heldout/return_mean"} <= {name for _, _, name, _ in events}


@pytest.mark.slow
def test_a_resume_repeats_no_point_and_a_fork_has_a_folder_of_its_own(monkeypatch):
    monkeypatch.setattr(following, "END_SECONDS", LIMIT)
    first = train(tensorboard_run(), track=False)
    shutil.rmtree(max((first.run_dir / run_layout.CHECKPOINTS).glob("step_*")))  # so that steps are repeated
    resumed = resume_training(first.run_dir, track=False)
    assert resumed.run_dir == first.run_dir
    events = read_events(first.run_dir)
    assert events == scalars(first.run_dir)
    assert len({(step, name) for step, _, name, _ in events}) == len(events)
    assert max(step for step, *_ in events) == 1_000
    fork = resume_training(first.run_dir, {"total_timesteps": 500}, fine_tune=True, track=False)
    assert fork.run_dir != first.run_dir
    assert read_events(fork.run_dir) == scalars(fork.run_dir)
    assert read_events(first.run_dir) == events


@pytest.mark.slow
def test_a_run_is_the_same_with_a_sink_and_without(monkeypatch):
    monkeypatch.setattr(following, "END_SECONDS", LIMIT)
    hashes = {
        train(tensorboard_run(tracking={"sinks": sinks}), track=False).policy_sha256
        for sinks in ([], ["tensorboard"], [BROKEN])
    }
    assert len(hashes) == 1


@pytest.mark.slow
def test_a_process_that_is_killed_is_no_loss_for_the_next_one(monkeypatch):
    monkeypatch.setattr(following, "END_SECONDS", LIMIT)
    run_dir, config = make_run(tracking={"sinks": [KILLED]})
    with follow_metrics(run_dir, config, StopFlag()):
        log_lines(run_dir, range(0, 80, 10))
        wait_for((run_dir / "copy.killed").exists)
    with follow_metrics(run_dir, config, StopFlag()):
        log_lines(run_dir, range(80, 120, 10))
    assert copied(run_dir) == logged(run_dir)
    assert len(logged(run_dir)) == 12


@pytest.mark.slow
def test_the_process_of_a_run_that_was_taken_over_writes_nothing_more(monkeypatch):
    monkeypatch.setattr(following, "END_SECONDS", LIMIT)
    run_dir, config = make_run(tracking={"sinks": [FILE]})
    with follow_metrics(run_dir, config, StopFlag()):
        log_lines(run_dir, [10])
        wait_for(lambda: (run_dir / "copy.jsonl").exists() and len(copied(run_dir)) == 1)
        take_over(run_dir)
        with follow_metrics(run_dir, config, StopFlag()):
            log_lines(run_dir, [20, 30])
    assert copied(run_dir) == logged(run_dir)


class StopAt(Callback):
    """Stops training at a step."""

    def __init__(self, step):
        self.step = step

    def on_update_end(self, state):
        if state.num_timesteps >= self.step:
            state.request_stop()


@pytest.mark.slow
def test_training_that_is_killed_and_resumed_leaves_each_point_once(tmp_path):
    import subprocess

    text = f"""
from test_sinks import tensorboard_run
from rl_training.api.train_and_resume import train
train(tensorboard_run(total_timesteps=10_000_000, run_dir={str(tmp_path / "run")!r}), track=False)
"""
    run_dir = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
    try:
        wait_for(lambda: (run_dir / EVENTS).exists() and (run_dir / EVENTS).stat().st_size > 10_000)
        wait_for(lambda: len(list((run_dir / "checkpoints").glob("step_*"))) > 0)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    steps = max(line["step"] for line in logged(run_dir))
    resume_training(
        run_dir, {"total_timesteps": 10_000_000, "evaluation.final_episodes": 1}, [StopAt(steps + 500)], track=False
    )
    assert read_events(run_dir) == scalars(run_dir)
    points = [(step, name) for step, _, name, _ in read_events(run_dir)]
    assert len(set(points)) == len(points)


@pytest.mark.slow
@pytest.mark.usefixtures("flow_home")
def test_a_flow_writes_event_files_too():
    from rl_training.flows.train import train_flow

    state = train_flow(
        {"algo": "ppo", **PLAIN, "total_timesteps": 500, "tracking": {"sinks": ["tensorboard"]}}, return_state=True
    )
    assert state.is_completed()
    run_dir = Path(state.result()["run_dir"])
    assert read_events(run_dir) == scalars(run_dir)
    assert len(scalars(run_dir)) > 0


def test_sync_completes_the_sinks_of_an_untracked_run(capfd):
    run_dir = sunk_run("tensorboard")
    log_lines(run_dir, range(0, 50, 10))
    assert command(["sync", str(run_dir), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"sinks": [{"name": "tensorboard", "missing": 0, "message": ""}]}
    assert read_events(run_dir) == scalars(run_dir)


def test_sync_says_that_a_sink_is_no_sink(capfd):
    run_dir = sunk_run("sink_examples:Unfit")
    log_lines(run_dir, [10])
    assert command(["sync", str(run_dir)]) == 1
    assert "lacks 1 line of" in capfd.readouterr().out


def test_the_sink_of_a_received_run_needs_permission(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    run_dir = sunk_run(FILE, run_dir=tmp_path / "received")
    log_lines(run_dir, [10])
    with pytest.raises(ModuleRefused, match=r"tracking\.sinks\.0 names the module sink_examples"):
        complete_sinks(run_dir)
    assert not (run_dir / "copy.jsonl").exists()
    (report,) = complete_sinks(run_dir, allow_modules=["sink_examples"])
    assert report.missing == 0
    assert copied(run_dir) == logged(run_dir)


class FakeWandb:
    """W&B's client and server, as far as the example of the documentation uses them.

    The server keeps steps that are complete. A run that is opened again continues after its last step.
    """

    def __init__(self):
        self.runs = {}

    def init(self, *, project, id, name, config, dir, resume):
        assert resume == "allow"
        (Path(dir) / "wandb").mkdir(exist_ok=True)
        (Path(dir) / "wandb" / "latest-run").unlink(missing_ok=True)
        (Path(dir) / "wandb" / "latest-run").symlink_to("somewhere")
        server = self.runs.setdefault(id, {"steps": [], "config": {}, "name": name})
        server["config"] |= {key: value for key, value in config.items() if key not in server["config"]}
        run = SimpleNamespace(step=server["steps"][-1][0] + 1 if server["steps"] else 0)
        run.summary = {name: value for _, data in server["steps"] for name, value in data.items()}
        run.config = _Config(server["config"])

        def log(data, step, commit):
            assert commit
            if step >= run.step:  # W&B drops steps that it has
                server["steps"].append((step, dict(data)))
                run.step = step + 1

        run.log, run.finish, run.define_metric = log, lambda: None, lambda name, step_metric: None
        return run


class _Config(dict):
    def update(self, values, allow_val_change):
        assert allow_val_change
        super().update(values)


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """A fake server, and the example of the documentation as the module `wandb_sink`."""
    fake = FakeWandb()
    page = (DOCS / "how-to" / "sinks.md").read_text()
    (tmp_path / "wandb_sink.py").write_text(page.split('```python title="wandb_sink.py"\n')[1].split("```")[0])
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delitem(sys.modules, "wandb_sink", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return fake


WANDB = "wandb_sink:WandbSink"


def steps_of(server):
    return [data["num_timesteps"] for _, data in server["steps"]]


def test_the_sink_for_weights_and_biases_logs_each_line_once(wandb):
    run_dir = sunk_run(WANDB)
    log_lines(run_dir, [10, 20, 30])
    log_lines(run_dir, [30], "eval/return_mean", "eval")
    pass_all(run_dir, WANDB)
    before = locate(run_dir, WANDB, ".json").read_text()
    log_lines(run_dir, [40, 50])
    pass_all(run_dir, WANDB)
    locate(run_dir, WANDB, ".json").write_text(before)  # killed before its progress was recorded
    log_lines(run_dir, [60])
    assert complete_sinks(run_dir) == [SinkReport(WANDB, 0, "")]
    ((uid, server),) = wandb.runs.items()
    assert uid == read_run(run_dir)[0].run_uid
    assert steps_of(server) == [10, 20, 30, 30, 40, 50, 60]
    assert server["config"]["env_id"] == "CartPole-v1"


def test_the_sink_for_weights_and_biases_repeats_what_a_kill_kept_from_the_server(wandb):
    run_dir = sunk_run(WANDB)
    log_lines(run_dir, [10, 20, 30])
    pass_all(run_dir, WANDB)
    (server,) = wandb.runs.values()
    del server["steps"][1:]
    log_lines(run_dir, [40])
    pass_all(run_dir, WANDB)
    assert steps_of(server) == [10, 20, 30, 40]


def test_the_sink_for_weights_and_biases_continues_a_run_from_elsewhere(wandb):
    run_dir = sunk_run(WANDB)
    log_lines(run_dir, [10, 20, 30])
    pass_all(run_dir, WANDB)
    elsewhere = sunk_run(WANDB)  # resumed from a checkpoint at 10: the same run, a new file
    told = json.loads((elsewhere / "sinks" / "run.json").read_text())
    told["run_uid"] = read_run(run_dir)[0].run_uid
    (elsewhere / "sinks" / "run.json").write_text(json.dumps(told))
    log_lines(elsewhere, [20, 30, 40, 50])
    pass_all(elsewhere, WANDB)
    (server,) = wandb.runs.values()
    assert steps_of(server) == [10, 20, 30, 40, 50]


def test_the_settings_that_a_sink_is_told_hide_secrets():
    run_dir = sunk_run(FILE, env_kwargs={"api_key": "hunter2"})
    assert "hunter2" not in (run_dir / "sinks" / "run.json").read_text()
    assert read_run(run_dir)[0].settings["env_id"] == "CartPole-v1"
