"""YAML files: encodings, broken syntax, and refusals in one line with the position."""

import pytest

from rl_training.config.parsing import decode, read_yaml
from rl_training.errors import ConfigError
from rl_training.experiment.loading import load_config

VALID = b"algo: ppo\nenv_id: CartPole-v1\nseed: 7\ntotal_timesteps: 2048\n"


def load(tmp_path, data: bytes, name: str = "my.yaml"):
    path = tmp_path / name
    path.write_bytes(data)
    return load_config(path)


def refusal(tmp_path, data: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, data)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(str(tmp_path / "my.yaml"))
    return line.removeprefix(str(tmp_path / "my.yaml"))


@pytest.mark.parametrize(
    "data",
    [
        VALID,
        b"\xef\xbb\xbf" + VALID,
        VALID.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + VALID.replace(b"\n", b"\r\n"),
        VALID.rstrip(b"\n"),
        b"---\n" + VALID,
        b"{algo: ppo, env_id: CartPole-v1, seed: 7, total_timesteps: 2048}",
    ],
)
def test_valid_files(tmp_path, data):
    config = load(tmp_path, data)
    assert (config.seed, config.env_id, config.total_timesteps) == (7, "CartPole-v1", 2048)


def test_text_beyond_ascii(tmp_path):
    assert load(tmp_path, VALID + "run_name: café ☕\n".encode()).run_name == "café ☕"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"algo: ppo\n  env_id: A-v0\nseed: [7\n", ":2:9: mapping values are not allowed here"),
        (b"algo: ppo\nseed: [7\n", ":3:1: while parsing a flow sequence: expected ',' or ']', but got '<stream end>'"),
        (b"algo: ppo\nevaluation:\n\tevery: 512\n", ":3:1: got a tab in the indentation, expected spaces"),
        (b"algo: ppo\nrun_name: caf\xe9\n", ":2:14: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (b"\xff\xfea\x00", ":1:1: byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"algo: p\x00po\n", ":1:8: the character U+0000 is not allowed"),
        (b"- algo: ppo\n- seed: 1\n", ":1:1: got a list at the top level, expected a mapping of keys to values"),
        (b"just text\n", ":1:1: got a single value at the top level, expected a mapping of keys to values"),
        (VALID + b"---\n" + VALID, ":5:1: expected a single document in the stream: but found another document"),
        (b"1: a\n", ':1:1: key 1 is not text; write it in quotes: "1"'),
        (b"a:\n  true: b\n", ':2:3: key true is not text; write it in quotes: "true"'),
        (b"? [a, b]\n: c\n", ":1:3: got a list or mapping as a key, expected text"),
        (b"a: &x [*x]\n", ":1:4: an anchor that contains itself"),
        (b"a: *nowhere\n", ":1:4: no anchor has this name; quote a text that begins with *"),
        (b"a: !x!secret\n", ":1:4: unknown kind of tag; quote a text that begins with !"),
        (b"<<: text\n", ":1:5: << expects a mapping (an alias such as *defaults)"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path, data, message):
    assert refusal(tmp_path, data) == message


@pytest.mark.parametrize("data", [b"", b"\n\n", b"# only a comment\n", b"---\n", b"null\n", b"\xef\xbb\xbf", b"~"])
def test_an_empty_file_is_not_a_file_of_defaults(tmp_path, data):
    assert refusal(tmp_path, data).startswith(": empty config")


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.mkdir [called]",
        "!!python/name:os.getpid",
        "!!python/tuple [1, 2]",
        "!!binary aGVsbG8=",
        "!!set {a, b}",
        "!!timestamp 2026-01-02",
        "!mine 3",
    ],
)
def test_tags_are_refused_and_nothing_is_called(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    line = refusal(tmp_path, VALID.replace(b"seed: 7", f"seed: {value}".encode()))
    assert line.startswith(":3:7: ")
    assert "is not allowed; quote a text that begins with !" in line
    assert [path.name for path in tmp_path.iterdir()] == ["my.yaml"]


def test_core_tags_mean_what_they_say(tmp_path):
    config = load(tmp_path, VALID + b"run_name: !!str 123\nenv_kwargs: {a: !!int 3, b: !!float 2.5}\n")
    assert (config.run_name, config.env_kwargs) == ("123", {"a": 3, "b": 2.5})


def test_every_key_given_twice_is_named_with_both_lines(tmp_path):
    text = (
        b"algo: ppo\nenv_id: A-v0\nlearning_rate: 0.0003\ntotal_timesteps: 2048\nevaluation:\n  episodes: 20\nseed: 7\n"
        b"learning_rate: 0.1\nevaluation:\n  every: 1024\n  every: 3\nenv_kwargs: {a: {b: 1, b: 2}}\nsede: 3\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    path = tmp_path / "my.yaml"
    assert str(caught.value).splitlines() == [
        f"{path}:8: learning_rate: given twice (lines 3 and 8); keep one",
        f"{path}:9: evaluation: given twice (lines 5 and 9); keep one",
        f"{path}:11: evaluation.every: given twice (lines 10 and 11); keep one",
        f"{path}:12: env_kwargs.a.b: given twice (lines 12 and 12); keep one",
        f"{path}:13: sede: unknown key; did you mean seed?",
    ]


def test_a_key_that_differs_in_quotes_alone_is_the_same_key(tmp_path):
    assert refusal(tmp_path, VALID + b"'seed': 8\n") == ":5: seed: given twice (lines 3 and 5); keep one"


def test_anchors_and_merge_keys(tmp_path):
    text = (
        b"env_kwargs:\n  a: &base {x: 1, y: 2}\n  b: {<<: *base, y: 3}\n  c: {<<: [{z: 4, y: 5}, *base]}\n  d: *base\n"
    )
    assert load(tmp_path, VALID + text).env_kwargs == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 5, "z": 4},
        "d": {"x": 1, "y": 2},
    }


def test_a_file_that_expands_without_end_is_refused(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert refusal(tmp_path, "\n".join(lines).encode()).startswith(": more than 100,000 values")


def test_a_file_nested_without_end_is_refused(tmp_path):
    assert refusal(tmp_path, b"a: " + b"[" * 5000 + b"]" * 5000) == ": nested too deeply"


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "missing.yaml")


def test_syntax_messages_repeat_no_value():
    for text in ("password: *hunter2\n", "password: !hunter2\n", "password: !hunter2!x\n", "password: @hunter2\n"):
        with pytest.raises(ConfigError) as caught:
            read_yaml(text, "x")
        assert "hunter2" not in str(caught.value)


def test_lines_and_columns_count_characters_of_the_file_as_saved():
    with pytest.raises(ConfigError, match=r"^x:3:2: byte 0xff"):
        decode(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n \xff", "x")
