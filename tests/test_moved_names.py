"""The old paths of modules and names still work, and warn."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.moved_names import MODULES, NAMES

ROOT = Path(__file__).resolve().parents[1]

USED_TOGETHER = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from rl_training.envs.training import TrainingEnvs
    from rl_training.runtime.setup import make_trainer
    from rl_training.runtime.stopping import StopFlag
    from rl_training.tracking.store import connect, resolve_tracking_uri
assert {(w.category, w.filename) for w in caught} == {(DeprecationWarning, __file__)}, [str(w) for w in caught]
assert len(caught) == 4
import rl_training.runs.stopping, rl_training.tracking.mlflow_store
assert rl_training.runs.stopping.StopFlag is StopFlag
assert rl_training.runs.stopping.__spec__.name == rl_training.runs.stopping.__name__ == "rl_training.runs.stopping"
assert rl_training.tracking.store is rl_training.tracking.mlflow_store
"""


def test_a_plugin_of_version_0_1_imports_what_its_example_imported(tmp_path):
    (tmp_path / "plugin.py").write_text(USED_TOGETHER)
    done = subprocess.run([sys.executable, "plugin.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("old", MODULES)
def test_old_path_of_a_module_is_free(old):
    assert not (ROOT / old.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize("old", NAMES)
def test_old_name_warns_and_is_the_new_one(old):
    (old_home, _, old_name), (new_home, _, new_name) = old.rpartition("."), NAMES[old].rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{old} was renamed to {NAMES[old]}"):
        found = getattr(importlib.import_module(old_home), old_name)
    assert found is getattr(importlib.import_module(new_home), new_name)


@pytest.mark.parametrize("module", sorted({old.rpartition(".")[0] for old in NAMES}))
def test_unknown_name_of_a_module_with_old_names_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        importlib.import_module(module).nothing  # noqa: B018
