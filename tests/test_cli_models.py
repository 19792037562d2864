"""`rl-training promote` and `rollback` from outside: exit codes, one line of JSON, lines for people."""

import json

import pytest
from mlflow_store import BAD, WEAK, run_with_policy

from rl_training.cli.app import run

MODEL = "CartPole-v1"
RULES = ["--set", "promotion.episodes=20"]


@pytest.fixture
def command(client, capfd, tmp_path, monkeypatch):
    """Runs a command in an empty folder; returns its exit code, stdout and stderr."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    def called(*words):
        code = run(list(map(str, words)))
        out, err = capfd.readouterr()
        assert list((tmp_path / "empty").iterdir()) == []
        return code, out, err

    return called


def test_promote_and_roll_back(command):
    (_, first), (_, second) = (run_with_policy(gains, seed=i) for i, gains in enumerate((BAD, WEAK)))
    code, out, _ = command("promote", first, *RULES, "--json")
    result = json.loads(out)
    assert (code, result["verdict"], result["alias"], result["previous_version"]) == (0, "PROMOTE", "champion", None)
    assert (result["model"], result["version"], result["run_id"], result["champion"]) == (MODEL, "1", first, None)
    assert result["candidate"]["episodes"] == 20
    assert result["record"] == f"runs:/{first}/promotions/{result['decision_id']}.json"

    assert ", when there was no champion" in command("promote", first, *RULES)[1]

    code, out, _ = command("promote", second, *RULES)
    assert code == 0
    assert out.splitlines()[0] == f"PROMOTE: registered model {MODEL}, version 2, now champion"
    assert "on the same 20 episodes the candidate's mean return is " in out
    assert ", when the champion was version 1" in out

    code, out, _ = command("rollback", MODEL, "--reason", "it falls over", "--json")
    rolled_back = json.loads(out)
    assert (code, rolled_back["version"], rolled_back["previous_version"]) == (0, "1", "2")
    assert rolled_back["reason"] == "it falls over"


def test_hold_and_reject_are_decisions_too(command):
    (_, first), (_, worse) = (run_with_policy(gains, seed=i) for i, gains in enumerate((WEAK, BAD)))
    assert command("promote", first, *RULES)[0] == 0
    _, equal = run_with_policy(WEAK, seed=3)
    code, out, _ = command("promote", equal, *RULES, "--json")
    assert (code, json.loads(out)["verdict"], json.loads(out)["alias"]) == (0, "HOLD", "challenger")
    code, out, _ = command("promote", worse, *RULES, "--json")
    assert (code, json.loads(out)["verdict"], json.loads(out)["alias"]) == (0, "REJECT", None)
    code, out, _ = command("promote", worse, *RULES, "--force", "a drill", "--json")
    forced = json.loads(out)
    assert (code, forced["verdict"], forced["forced"], forced["alias"]) == (0, "REJECT", "a drill", "champion")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["promote", "nothing"], "error: 'nothing' is no checkpoint; expected a checkpoint's or run's directory"),
        (["promote", "0" * 32], "has no such thing: Run with id=000"),
        (["promote"], "error: "),
        (["rollback", MODEL], "error: "),
        (["rollback", MODEL, "--reason", "a test"], f"has no such thing: Registered Model with name={MODEL} not found"),
    ],
)
def test_what_a_user_can_put_right_is_exit_code_2(command, words, message):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_rollback_without_a_champion_before_is_exit_code_2(command):
    _, run_id = run_with_policy(BAD)
    command("promote", run_id, *RULES)
    code, out, err = command("rollback", MODEL, "--reason", "a test")
    assert (code, out) == (2, "")
    assert f"error: version 1 of {MODEL} has no champion before it that is still there and was not rolled back;" in err
    code, _, err = command("promote", run_id, *RULES, "--force", " ")
    assert (code, err.splitlines()[-1]) == (
        2,
        "error: a forced promotion needs a reason, which stays on record; got an empty one",
    )
