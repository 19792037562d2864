"""Secrets are hidden wherever settings are written, and references to secrets are resolved as late as possible."""

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.resume_rules import find_differences
from rl_training.config.serialization import config_hash, dump_config
from rl_training.envs.factory import make_vector_env
from rl_training.errors import ConfigError, UserError
from rl_training.experiment.loading import config_from_text
from rl_training.security import secrets as secrets_module
from rl_training.security.secrets import (
    REDACTED,
    collect_secret_values,
    collect_secrets,
    hide,
    is_secret_name,
    redact,
    redact_text,
    resolve_reference,
    resolve_secrets,
)

TEXT = """\
algo: ppo
env_id: A-v0
total_timesteps: 2048
env_kwargs:
  api_token: CASE-SECRET-1
  server: http://robot:CASE-SECRET-2@127.0.0.1:5000/x?api_key=CASE-SECRET-3&size=3
  login: {password: CASE-SECRET-4, user: me, keys: {secret: [CASE-SECRET-5]}}
  reference: ${env:SIM_TOKEN}
  license_key: ${prefect:sim-key}
  access_token: ${env:SIM_TOKEN}
  max_tokens: 64
wrappers:
- {name: Sign, kwargs: {signing_secret: CASE-SECRET-6}}
"""


@pytest.fixture
def config():
    return config_from_text(TEXT, source="my.yaml")


SECRET_NAMES = [
    "token", "api_token", "apiToken", "API_TOKEN", "password", "db-password", "secret", "client_secret", "api_key",
    "apikey", "private_key", "credentials", "auth", "webhook_url", "access_keys", "githubToken2", "pwd", "tokens",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_that_say_secret(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["env_id", "key", "seed", "author", "tokenizer", "secretary", "keys", "size", "passes"]
)
def test_names_that_do_not(name):
    assert not is_secret_name(name)


def test_the_environment_gets_the_secrets(config):
    assert config.env_kwargs["api_token"] == "CASE-SECRET-1"
    assert config.wrappers[0].kwargs == {"signing_secret": "CASE-SECRET-6"}


def test_nothing_written_holds_a_secret(config):
    written = dump_config(config) + repr(config) + str(config) + f"{config}" + repr(config.wrappers)
    assert "CASE-SECRET" not in written
    assert dump_config(config, redacted=False).count("CASE-SECRET") == 6


def test_redacting_keeps_references_counts_and_all_else(config):
    assert redact(config.env_kwargs) == {
        "api_token": "***",
        "server": "http://robot:***@127.0.0.1:5000/x?api_key=***&size=3",
        "login": {"password": "***", "user": "me", "keys": {"secret": ["***"]}},
        "reference": "${env:SIM_TOKEN}",
        "license_key": "${prefect:sim-key}",
        "access_token": "${env:SIM_TOKEN}",
        "max_tokens": 64,
    }
    assert redact({"password": 1234, "use_token": True, "token": None, "secret": ""}) == {
        **{"password": "***", "use_token": True, "token": None, "secret": ""}
    }
    assert config.env_kwargs["api_token"] == "CASE-SECRET-1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("postgresql+psycopg://me:pw@db/x", "postgresql+psycopg://me:***@db/x"),
        ("lost connection to http://me:p:w@h/ at 3", "lost connection to http://me:***@h/ at 3"),
        ("http://me:${env:PW}@h", "http://me:${env:PW}@h"),
        ("https://h/x?token=abc&n=1#top", "https://h/x?token=***&n=1#top"),
        ("me@example.org", "me@example.org"),
        ('--set=env_kwargs={"api_token": "a \\" b", "n": 3}', '--set=env_kwargs={"api_token": ***, "n": 3}'),
        ("env_kwargs={n: 3, token: abc}", "env_kwargs={n: 3, token: ***}"),
        ("env_kwargs={token: ${env:A}, password: 'a, b'}", "env_kwargs={token: ${env:A}, password: ***}"),
    ],
)
def test_addresses_in_text(text, shown):
    assert redact_text(text) == shown


def test_the_secrets_among_arguments_are_found_and_hidden_in_any_text(config, monkeypatch):
    monkeypatch.setenv("SIM_TOKEN", "from-the-environment")
    secrets = collect_secret_values({**config.env_kwargs, "mixed": "http://me:${env:SIM_TOKEN}@h", "use_token": True})
    assert secrets == {
        *("CASE-SECRET-1", "CASE-SECRET-2", "CASE-SECRET-3", "CASE-SECRET-4", "CASE-SECRET-5"),
        "from-the-environment",
    }
    assert hide("login CASE-SECRET-1/from-the-environment failed, size 64", secrets) == "login ***/*** failed, size 64"
    assert collect_secret_values({"password": 1234, "pin_token": "ab", "max_tokens": 640}) == {"1234", "ab"}
    assert hide("about 1234 is wrong", {"1234", "ab"}) == "about *** is wrong"
    key = "-- a\nb'c/d"
    for shown in (key, repr(key), "-- a b'c/d", "--%20a%0Ab%27c%2Fd"):
        assert "c/d" not in hide(f"key {shown}!", {key, "-- a"}).replace("%2F", "/")


def test_references_are_resolved_by_what_is_handed_in(config):
    def resolver(kind: str, name: str) -> str:
        return f"<{kind} {name}>"

    resolved = resolve_secrets({**config.env_kwargs, "mixed": "http://me:${env:PW}@h", "n": [1, None]}, resolver)
    assert resolved["reference"] == "<env SIM_TOKEN>"
    assert resolved["license_key"] == "<prefect sim-key>"
    assert resolved["mixed"] == "http://me:<env PW>@h"
    assert resolved["n"] == [1, None]
    assert resolved["api_token"] == "CASE-SECRET-1"
    assert config.env_kwargs["reference"] == "${env:SIM_TOKEN}"


def test_references_to_environment_variables(monkeypatch):
    monkeypatch.setenv("SIM_TOKEN", "from-the-environment")
    assert resolve_secrets({"a": {"b": ["${env:SIM_TOKEN}"]}}) == {"a": {"b": ["from-the-environment"]}}
    monkeypatch.delenv("SIM_TOKEN")
    with pytest.raises(ConfigError, match=r"^env_kwargs\.a: \$\{env:SIM_TOKEN\}: the environment variable .* not set$"):
        resolve_secrets({"a": "${env:SIM_TOKEN}"}, resolve_reference)
    with pytest.raises(ConfigError, match="inside a Prefect flow only"):
        resolve_secrets({"a": "${prefect:block}"})


def test_a_kind_of_reference_that_is_handed_down_is_resolved_and_hidden(monkeypatch):
    monkeypatch.setitem(secrets_module._lookups, "prefect", {"sim": "from-a-block", "other": "unused"}.__getitem__)
    kwargs = {"a": "${prefect:sim}", "b": ["${env:HOME}", {"c": "x-${prefect:sim}"}], "n": 3}
    assert resolve_secrets(kwargs)["b"][1] == {"c": "x-from-a-block"}
    assert "from-a-block" in collect_secret_values(kwargs)
    assert collect_secrets(kwargs) == {"prefect": {"sim": "from-a-block"}}  # a child has the environment itself


def test_settings_read_back_without_their_secrets_say_what_to_do(config):
    again = config_from_text(dump_config(config), source="config.yaml")
    assert again.env_kwargs["api_token"] == REDACTED
    for key in ("api_token", "server", "login"):
        with pytest.raises(ConfigError, match=rf"^env_kwargs\.{key}.*set it again as a reference.*\$\{{env:NAME\}}"):
            resolve_secrets({key: again.env_kwargs[key]})
    assert find_differences(config, again) == []
    assert config_hash(config) == config_hash(again)
    renewed = config_from_text(dump_config(config), ["env_kwargs.api_token=${env:SIM}"], source="config.yaml")
    assert find_differences(config, renewed) == []
    assert config_hash(config) == config_hash(renewed)


@pytest.mark.parametrize(
    ("key", "reference", "expected"),
    [
        ("run_name", "${env:X}", "secrets are resolved in env_kwargs and in the kwargs of wrappers and callbacks only"),
        ("tags.a", "${env:X}", "secrets are resolved in env_kwargs and in the kwargs of wrappers and callbacks only"),
        ("seed", "${env:X}", "expected a whole number"),
        ("env_kwargs.a", "${vault:X}", "expected a reference of the kind ${env:NAME} or ${prefect:BLOCK}"),
    ],
)
def test_references_where_they_would_not_be_resolved_are_refused(key, reference, expected):
    with pytest.raises(ConfigError) as caught:
        config_from_text(TEXT, [f"{key}={reference}"], source="my.yaml")
    assert expected in str(caught.value)


def test_error_messages_hold_no_secret():
    text = (
        TEXT.replace("  max_tokens: 64", "  token: 007\n  tokens: [off]\n  password: .nan")
        + "notify: {password: CASE-SECRET-7}\n"
    )
    with pytest.raises(ConfigError) as caught:
        config_from_text(text + "seed: http://a:CASE-SECRET-8@b\n", ["mlflow.password=CASE-SECRET-9"], source="my.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert "CASE-SECRET" not in str(caught.value)
    assert "env_kwargs.token: got a value (hidden)" in lines[0]
    with pytest.raises(ConfigError) as caught:
        config_from_text(TEXT, ["env_kwargs.password:CASE-SECRET"], source="my.yaml")
    assert "CASE-SECRET" not in str(caught.value)


def test_errors_of_settings_made_in_python_hold_no_secret():
    with pytest.raises(ConfigError, match="total_timesteps") as caught:
        PPOConfig(env_id="A-v0", env_kwargs={"token": "CASE-SECRET"})
    assert "CASE-SECRET" not in str(caught.value)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_environment_is_made_with_what_its_references_stand_for(monkeypatch, vectorization):
    monkeypatch.setenv("CARTPOLE_MODE", "rgb_array")
    config = PPOConfig(
        env_id="CartPole-v1",
        total_timesteps=1,
        num_envs=2,
        vectorization=vectorization,
        env_kwargs={"render_mode": "${env:CARTPOLE_MODE}"},
        wrappers=[{"name": "RescaleObservation", "kwargs": {"min_obs": "${env:NOT_SET}", "max_obs": 1.0}}],
    )
    with pytest.raises(UserError, match=r"wrappers\.0\.kwargs\.min_obs: .*the environment variable NOT_SET is not set"):
        make_vector_env(config)
    envs = make_vector_env(config.model_copy(update={"wrappers": ()}))
    assert envs.call("render_mode") == ("rgb_array", "rgb_array")
    envs.close()
