"""Settings that are written and read back, their hash, the reference page, and the paths in them."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.reference import read_meanings, update_page
from rl_training.config.serialization import NOT_PART_OF_A_RUN, config_hash, dump_config
from rl_training.config.settings import TrainConfig
from rl_training.experiment.loading import config_from_mapping, config_from_text, load_config
from rl_training.system import paths

ROOT = Path(__file__).resolve().parents[1]

TRICKY = [
    "1e-4", "007", "off", "1:30", "null", "~", "", ".nan", "2_000", "0x1F", "<<", "- a", "a: b", "# c", "2026-01-02",
    " lead", "*x", "&y", "!z", "'", '"', "{}", "[a]", "0o7", "1e5", ".5", "5.", "true", "No", "=", "\u2028", "%a", "@b",
    '{"a": 1}', "a\nb", "tab\t", "\ufeff",
]  # fmt: skip
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12) | st.sampled_from(TRICKY)
words = st.from_regex(r"[a-z_]{1,8}", fullmatch=True) | texts
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | texts
numbers = st.floats(allow_nan=False, allow_infinity=False)
free = st.recursive(
    scalars | numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 ._:#&*!'\"-]{0,20}[A-Za-z0-9]", fullmatch=True)


@st.composite
def configs(draw) -> PPOConfig:
    num_envs, rollout_steps = draw(st.integers(1, 64)), draw(st.integers(2, 512))
    return PPOConfig(
        env_id=draw(st.sampled_from(["CartPole-v1", "mod:ns/Env-v0"])),
        env_kwargs=draw(st.dictionaries(words, free, max_size=3)),
        wrappers=[{"name": "A", "kwargs": draw(st.dictionaries(words, free, max_size=2))}],
        total_timesteps=draw(st.integers(1, 10**12)),
        num_envs=num_envs,
        rollout_steps=rollout_steps,
        batch_size=draw(st.integers(2, num_envs * rollout_steps)) if num_envs * rollout_steps > 2 else 2,
        learning_rate=draw(st.floats(1e-12, 1e3)),
        target_kl=draw(st.none() | st.floats(1e-9, 10)),
        run_name=draw(st.none() | names),
        experiment=draw(names),
        tags=draw(st.dictionaries(st.from_regex(r"[a-z][a-z0-9. -]{0,8}[a-z0-9]", fullmatch=True), texts, max_size=3)),
        run_dir=draw(st.none() | st.just(Path("/tmp/a b: c"))),
        promotion={"floor": draw(st.none() | numbers)},
        network={"hidden": draw(st.lists(st.integers(1, 512), max_size=3))},
    )


@settings(max_examples=150, deadline=None)
@given(configs())
def test_settings_written_are_read_back_equal(config):
    text = dump_config(config, redacted=False)
    again = config_from_text(text, source="x")
    assert again == config
    assert dump_config(again, redacted=False) == text
    assert config_hash(again) == config_hash(config)
    assert config_from_mapping(config.model_dump(mode="json")) == config


@settings(max_examples=60, deadline=None)
@given(configs())
def test_other_readers_of_yaml_1_1_read_the_same_texts(config):
    """Texts that YAML 1.1 would take for numbers, truth values or dates are quoted."""
    data = yaml.safe_load(dump_config(config, redacted=False))
    assert data["tags"] == config.tags
    assert data["run_name"] == config.run_name


def test_hash_is_of_what_defines_the_run():
    base = {"algo": "ppo", "env_id": "A-v0", "total_timesteps": 1000}
    reference = config_hash(config_from_mapping(base))
    assert len(bytes.fromhex(reference)) == 32
    named = {"run_dir": "/tmp/x", "run_name": "x", "tags": ["x"], "experiment": "x", "job": "x"}
    assert set(named) == set(NOT_PART_OF_A_RUN)
    assert config_hash(config_from_mapping(base, named)) == reference
    for change in (
        {"seed": 1},
        {"evaluation.every": 7},
        {"env_kwargs.a": 1},
        {"gamma": 0.98},
        {"total_timesteps": 1001},
    ):
        assert config_hash(config_from_mapping(base, change)) != reference
    assert config_hash(config_from_mapping({**base, "gamma": 0.99, "num_envs": 8})) == reference


def test_hash_does_not_depend_on_the_order_of_keys():
    base = {"algo": "ppo", "env_id": "A-v0", "total_timesteps": 1000}
    first = config_from_mapping({**base, "env_kwargs": {"a": 1, "b": 2}})
    second = config_from_mapping({"env_kwargs": {"b": 2, "a": 1}, **base})
    assert config_hash(first) == config_hash(second)


def test_every_field_has_a_docstring():
    def check(model):
        meanings = read_meanings(model)
        for key, field in model.model_fields.items():
            assert meanings.get(key), f"{model.__name__}.{key}"
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                check(field.annotation)

    check(PPOConfig)
    check(TrainConfig)


def test_the_reference_page_is_up_to_date():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert update_page(page) == page, "run: python -m rl_training.config.reference docs/configuration.md"
    assert "| `evaluation.every` | a whole number above 0 | `10_000` |" in page
    assert "| `rollout_steps` | a whole number above 0 | `128` |" in page


def test_the_example_of_the_settings_page_works():
    page = (ROOT / "docs" / "how-to" / "settings.md").read_text(encoding="utf-8")
    example = page.split('```yaml title="my.yaml"\n')[1].split("```")[0]
    assert config_from_text(example, source="page").learning_rate == 0.001


def test_configurations_and_deployments_are_in_the_wheel():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert "rl_training.configs" in setup["packages"]
    assert setup["package-dir"]["rl_training.configs"] == "configs"
    assert setup["package-data"]["rl_training.configs"] == ["*/*.yaml"]
    assert "rl_training.deployments" in setup["packages"]
    assert setup["package-dir"]["rl_training.deployments"] == "."
    assert "prefect.yaml" in setup["package-data"]["rl_training.deployments"]


def test_home_is_one_absolute_place(monkeypatch, tmp_path):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "chosen"))
    assert paths.home() == tmp_path / "chosen"
    assert paths.home().is_dir()
    assert paths.runs_root() == tmp_path / "chosen" / "runs"
    assert paths.embedded_tracking_uri() == f"sqlite:///{tmp_path}/chosen/mlflow.db"
    assert paths.embedded_artifact_root().is_dir()
    assert paths.locks_root().is_dir()


def test_a_relative_home_is_made_absolute_and_an_empty_one_is_the_default(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_TRAINING_HOME", "here")
    assert paths.home() == tmp_path / "here"
    monkeypatch.setenv("RL_TRAINING_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.home().is_absolute()
    assert paths.home().name == "rl_training"
    assert tmp_path in paths.home().parents


def test_settings_of_a_file_serialise_to_json():
    data = load_config("ppo/cartpole", {"run_dir": "/tmp/x"}).model_dump(mode="json")
    assert json.loads(json.dumps(data)) == data
    assert data["run_dir"] == "/tmp/x"


@pytest.mark.parametrize("value", ["1e-4", "007", "off", "1:30", "~", "null", "2026-01-02", "0o7", ".inf"])
def test_texts_that_look_like_something_else_are_quoted(value):
    config = config_from_mapping({"algo": "ppo", "env_id": "A-v0", "total_timesteps": 1, "env_kwargs": {"a": value}})
    assert f"a: '{value}'\n" in dump_config(config)
