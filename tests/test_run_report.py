"""The report of a run: `rl-training report`, and the page that flows log."""

import base64
import json
import shutil

import pytest
from finished_runs import finished_run, ship
from mlflow_store import NETWORK, ship_all, tracked_run, write_policy
from test_comparison_page import Links

import rl_training
from rl_training import run_layout
from rl_training.cli.app import run as run_command
from rl_training.errors import UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.promote import promote
from rl_training.run_report.report import make_page, make_report
from rl_training.run_report.reported_run import read_run
from rl_training.runs.evaluation_result import EvaluationResult
from rl_training.tracking import json_files

CURVE = {200: 1.0, 400: 3.0}
EVIL = {"callbacks": [{"name": "a:B", "kwargs": {"<script>": 1}}]}
GIF = b"GIF89a" + b"\x01" * 10


def add_evaluation(run_dir, *returns):
    """Writes a held-out evaluation with these returns, and a film."""
    folder = run_dir / run_layout.ARTIFACTS
    folder.mkdir(exist_ok=True)
    count = len(returns)
    evaluation = EvaluationResult(tuple(range(count)), returns, (10,) * count)
    (folder / run_layout.HELD_OUT).write_text(json.dumps(evaluation.to_dict()))
    (folder / run_layout.EPISODE).write_bytes(GIF)


def text_of(page):
    return " ".join(" ".join(Links(page).text).split())


def test_the_page_shows_results_settings_and_the_command_that_repeats_them():
    run_dir = finished_run(2.0, curve=CURVE, gamma=0.5, seed=3)
    add_evaluation(run_dir, 1.0, 2.0, 3.0, 2.0)
    page = make_page(read_run(run_dir))
    text, uid = text_of(page), read_run(run_dir).run.run_uid
    assert "PPO on CartPole-v1 1,000 of 1,000 steps, finished, seed 3" in text
    assert "return 2.00" in text
    assert "setting value default env_id CartPole-v1 - total_timesteps 1000 - gamma 0.5 0.99" in text
    assert "learning_rate" not in text  # it has its default
    assert f"rl-training reproduce {uid}" in text
    assert "MLflow run none" in text
    assert [line in text for line in ("Return", "Held-out returns")] == [True, True]
    assert "data:image/gif;base64,R0lGODlh" in page


def test_the_page_refers_to_nothing_outside_itself_and_escapes_what_comes_from_the_run(tmp_path):
    evil = tmp_path / "<script>$\\x$"
    run_dir = finished_run(curve=CURVE, run_dir=str(evil), **EVIL)
    page = make_page(read_run(run_dir))
    found = Links(page)
    outside = [reference for reference in found.references if not reference.startswith("#")]
    assert outside == []
    assert {"script", "img", "link", "iframe", "object", "base", "b"} & found.tags == set()
    assert len(found.ids) == len(set(found.ids))
    assert "&lt;script&gt;$\\x$" in page


def test_a_run_without_evaluations_says_so():
    assert "not evaluated" in text_of(make_page(read_run(finished_run(status="KILLED", stop_reason=None))))
    periodic = text_of(make_page(read_run(finished_run(curve=CURVE))))
    assert "not evaluated on held-out episodes; the last periodic evaluation returned 3.00" in periodic


def test_damaged_files_of_a_run_are_told_and_not_shown():
    run_dir = finished_run(curve=CURVE)
    add_evaluation(run_dir, 1.0)
    (run_dir / run_layout.ARTIFACTS / run_layout.HELD_OUT).write_text("{")
    (run_dir / run_layout.ARTIFACTS / run_layout.EPISODE).write_bytes(b"<svg onload='x'>")
    page = make_page(read_run(run_dir))
    assert "evaluation.json can't be read" in text_of(page)
    assert "<img" not in page
    assert "onload" not in page


def test_a_link_in_place_of_a_film_is_not_followed(tmp_path):
    run_dir = finished_run(curve=CURVE)
    add_evaluation(run_dir, 1.0)
    film, secret = run_dir / run_layout.ARTIFACTS / run_layout.EPISODE, tmp_path / "secret"
    secret.write_bytes(GIF)
    film.unlink()
    film.symlink_to(secret)
    with pytest.raises(rl_training.errors.CheckpointError, match="link"):
        read_run(run_dir)


def test_the_flow_reports_the_end_that_the_record_does_not_have_yet():
    run_dir = finished_run(curve=CURVE)
    json_files.write_status(run_dir, "KILLED", None, None)
    assert "finished (callback), seed 0" in text_of(make_report(run_dir, "callback"))


def test_the_command_writes_the_page_beside_and_renames(tmp_path, capfd):
    run_dir, out = finished_run(2.0, curve=CURVE), tmp_path / "page.html"
    assert run_command(["report", str(run_dir), "--out", str(out), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"report": str(out)}
    assert out.read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("missing/x.html", "missing is not a folder, expected one in which x.html can be written; make it"),
        ("folder", "folder is a folder, expected a file for the report; name one, such as {}/folder/report.html"),
        ("file/x.html", "file is not a folder, expected one in which x.html can be written; make it"),
        ("x" * 300, "can't be written: File name too long; expected a folder with room"),
    ],
)
def test_a_place_where_no_page_can_be_is_refused_in_a_sentence(out, message, tmp_path, capfd):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    assert run_command(["report", str(finished_run()), "--out", str(tmp_path / out)]) == 2
    told = capfd.readouterr().err
    assert message.format(tmp_path) in told
    assert "Traceback" not in told
    assert (tmp_path / "file").read_text() == "mine"


def test_an_earlier_report_is_replaced_and_no_other_file(tmp_path, capfd):
    run_dir, out = finished_run(2.0, seed=7), tmp_path / "page.html"
    for source in (finished_run(), run_dir):
        assert run_command(["report", str(source), "--out", str(out)]) == 0
    assert "seed 7" in text_of(out.read_text())
    link = tmp_path / "link.html"
    link.symlink_to(out)
    config = tmp_path / "my.yaml"
    config.write_text("algo: ppo")
    for path, other in ((link, "link-report.html"), (config, "my-report.html")):
        assert run_command(["report", str(run_dir), "--out", str(path)]) == 2
        told = capfd.readouterr().err
        assert f"{path} exists and is no report of `rl-training report`" in told
        assert f"name another file, such as {tmp_path / other}" in told
    assert config.read_text() == "algo: ppo"
    assert link.is_symlink()


def test_a_page_that_only_shows_the_mark_of_a_report_is_none(tmp_path):
    mark = '<meta name="generator" content="rl-training report">'
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html>{' ' * 1_000}{mark}")
    with pytest.raises(UserError, match="is no report"):
        rl_training.report(finished_run(), page)


def test_a_run_of_another_machine_is_read_from_mlflow(client):
    run_dir = finished_run(2.0, curve=CURVE, gamma=0.5)
    add_evaluation(run_dir, 1.0, 2.0, 3.0, 2.0)
    run_id = ship(run_dir, {"rl_training.kind": "training"})
    here = text_of(make_page(read_run(run_id)))
    shutil.rmtree(run_dir)
    there = text_of(make_page(read_run(run_id)))
    for text in (here, there):
        assert f"MLflow run {run_id}" in text
        assert "return 2.00" in text
        assert "gamma 0.5 0.99" in text


def test_decisions_on_its_candidates_are_shown(client):
    run_dir = tracked_run(network=NETWORK)
    checkpoint = write_policy(run_dir, 100, (1.0, 0.5))
    run_id = ship_all(run_dir).address.run_id
    decided = promote(checkpoint, config_of_checkpoint(checkpoint, {"promotion.episodes": 20}), run_id=run_id)
    page = text_of(make_page(read_run(f"models:/{decided.model}/{decided.version}")))
    assert decided.verdict.kind in page
    assert decided.verdict.reasons[0] in page


def test_a_report_about_a_version_names_it_and_its_checkpoint(client):
    run_dir = tracked_run(network=NETWORK)
    checkpoints = [write_policy(run_dir, step, gains) for step, gains in ((100, (1.0, 0.5)), (200, (1.0, 0.0)))]
    run_id = ship_all(run_dir).address.run_id
    first, second = (
        promote(one, config_of_checkpoint(one, {"promotion.episodes": 20, "promotion.model": "pole"}), run_id=run_id)
        for one in checkpoints
    )
    assert [first.version, second.version, second.verdict.kind] == ["1", "2", "REJECT"]
    champion = text_of(make_page(read_run("models:/pole@champion")))
    rejected = text_of(make_page(read_run("models:/pole/2")))
    run = text_of(make_page(read_run(run_id)))
    assert "version 1 of pole (challenger, champion) is the checkpoint step_000000000100 of this run" in champion
    assert "PROMOTE, judged by nothing but being first for pole" in champion
    assert "REJECT for pole" not in champion
    assert "version 2 of pole is the checkpoint step_000000000200 of this run" in rejected
    assert "REJECT for pole" in rejected
    assert "of this run" not in run
    for page in (champion, rejected, run):
        assert f"{first.time} pole 1 step 100 PROMOTE" in page
        assert f"{second.time} pole 2 step 200 REJECT" in page
        assert "registered as version 1 of pole (challenger, champion), the checkpoint step_000000000100" in page
        assert "registered as version 2 of pole, the checkpoint step_000000000200" in page


def run_of_command(command, tags):
    """Makes a run that this command started; returns its directory."""
    run_dir = tracked_run(tags)
    metadata = json_files.read_json(run_dir / run_layout.METADATA)
    json_files.write_json(run_dir / run_layout.METADATA, metadata | {"command": command})
    return run_dir


ENGINE = ["/venv/lib/python3.12/site-packages/prefect/engine.py"]
FLOW_RUN = "66733160-0000-4000-8000-000000000000"


def test_the_command_can_be_pasted():
    run_dir = run_of_command(["rl-training", "train", "--set", "run_dir=my run <script>"], {})
    assert "command rl-training train --set 'run_dir=my run <script>'" in text_of(make_page(read_run(run_dir)))


def test_a_run_of_a_worker_shows_its_flow_run_and_the_deployment_instead_of_the_engine():
    page_of_it = f"http://127.0.0.1:4200/runs/flow-run/{FLOW_RUN}"
    tags = {"prefect.flow": "train-flow", "prefect.flow_run_id": FLOW_RUN, "prefect.flow_run_url": page_of_it}
    bare = make_page(read_run(run_of_command(ENGINE, tags)))
    deployed = make_page(read_run(run_of_command(ENGINE, {**tags, "prefect.deployment": "train-flow/night run"})))
    for page in (bare, deployed):
        assert f"flow run {FLOW_RUN}" in text_of(page)
        assert [reference for reference in Links(page).references if reference[0] != "#"] == [page_of_it]
        assert "engine.py" not in page
    assert "command" not in text_of(bare).split("Origin")[1].split("Machine")[0]
    assert "command prefect deployment run 'train-flow/night run'" in text_of(deployed)


def test_only_an_address_of_a_web_page_becomes_a_link():
    tags = {"prefect.flow_run_id": FLOW_RUN, "prefect.flow_run_url": "javascript:alert(1)"}
    page = make_page(read_run(run_of_command(ENGINE, tags)))
    assert f"flow run {FLOW_RUN}" in text_of(page)
    assert "javascript" not in page


def test_the_device_is_the_one_that_was_used():
    run_dir = tracked_run(network=NETWORK, device="auto")
    assert "device auto" in text_of(make_page(read_run(run_dir)))
    write_policy(run_dir, 100, (1.0, 0.5), extra={"device": "cuda:0"})
    assert "device cuda:0" in text_of(make_page(read_run(run_dir)))


def test_a_long_film_is_whole():
    run_dir = finished_run(curve=CURVE)
    add_evaluation(run_dir, 1.0)
    film = GIF + b"\x02" * 30_000
    (run_dir / run_layout.ARTIFACTS / run_layout.EPISODE).write_bytes(film)
    assert base64.b64encode(film).decode() in make_page(read_run(run_dir))


def test_what_is_no_run_is_refused(client, tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        read_run(tmp_path)
    with pytest.raises(
        UserError, match="there is no run or model 'nothing'; expected a run's directory, an MLflow run id"
    ):
        read_run("nothing")
    with pytest.raises(UserError, match=f"MLflow has no training run {'0' * 32}"):
        read_run("0" * 32)
