"""The measurement of a command's start, and what it does not import."""

import os
import subprocess
import sys

from benchmarks.cost.start import FIRST_RUN, format_table, summarize

MEASURED = {"own_cpu_seconds": 1.0, "wall_seconds": 2.0, "peak_memory_bytes": 300_000_000}
KINDS = {"floor": 1.0, "untracked": 1.25, "tracked": 1.3, FIRST_RUN: 1.4, "flow": 5.0}


def test_the_start_is_compared_with_the_floor_by_medians():
    rounds = [
        {kind: MEASURED | {"cpu_seconds": cpu + extra} for kind, cpu in KINDS.items()} for extra in (0.0, 0.1, 9.0)
    ]
    summary = summarize(rounds)
    assert summary["floor"]["cpu_seconds"] == 1.1
    after = {kind: round(summary[kind]["cpu_after_floor"], 6) for kind in KINDS if kind != "floor"}
    assert after == {"untracked": 0.25, "tracked": 0.3, FIRST_RUN: 0.4, "flow": 4.0}
    assert round(summary["flow"]["cpu_after_tracked"], 6) == 3.7
    row = next(line for line in format_table(summary).splitlines() if "--no-track" in line)
    assert row == "| `train --no-track` | 1.35 | 0.25 | 0.3 | 300 |"


def test_what_is_imported_without_collections_is_left_alone_afterwards():
    code = (
        "import gc\n"
        "from rl_training.system.import_pause import pause_garbage_collection\n"
        "with pause_garbage_collection():\n"
        "    print(gc.isenabled(), gc.get_freeze_count())\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False 0", "True True"]


def test_a_flow_imports_no_statistics_before_it_trains(tmp_path):
    code = (
        "import sys\n"
        "from contextlib import nullcontext\n"
        "from rl_training.services.prefect_environment import prepare_prefect\n"
        "with prepare_prefect():\n"
        "    from rl_training.flows import train\n"
        "train.prepare_flow_process, train.enable_secret_blocks = nullcontext, lambda: None\n"
        "train.find_skip_reason, train.merge_stored_overrides = lambda: None, lambda overrides: overrides\n"
        "train.validate = lambda settings: {}\n"
        "train.run_pipeline = lambda settings, make_trainer: print(settings.env_id)\n"
        "train.train_flow.fn('ppo/cartpole', {'seed': 3})\n"
        "print([name for name in ('scipy.stats', 'sqlalchemy', 'mlflow') if name in sys.modules])\n"
    )
    home = {**os.environ, "RL_TRAINING_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, env=home)
    assert done.stdout.splitlines() == ["CartPole-v1", "[]"]
