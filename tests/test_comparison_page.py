"""The page, the text and the JSON of a comparison, and the command `compare`."""

import json
import re
from html.parser import HTMLParser

import pytest
from finished_runs import finished_run, group_of_runs

import rl_training
from rl_training.cli.app import run

SLOW = {"learning_rate": 0.001}
EVIL = {"callbacks": [{"name": "a:B", "kwargs": {"<script>": 1}}]}
CURVE = {200: 1.0, 400: 3.0}


class Links(HTMLParser):
    """Collects the tags of a page, its text, and everything that it refers to."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.references, self.text, self.ids = set(), [], [], []
        self.feed(page)
        self.references += re.findall(r"url\(([^)]*)\)|@import", page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        names = ("src", "href", "xlink:href", "srcset", "data", "action", "poster")
        self.references += [value for name, value in attributes if name in names]
        self.ids += [value for name, value in attributes if name == "id"]
        assert not [name for name, _ in attributes if name.startswith("on")]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    evil = tmp_path_factory.mktemp("runs") / "<script>$\\x$"
    reference = group_of_runs(1.0, 2.0, 3.0, 4.0, curve=CURVE, **SLOW)
    others = group_of_runs(5.0, 6.0, 7.0, curve=CURVE, **SLOW, **EVIL)
    others += [finished_run(8.0, seed=3, curve=CURVE, run_dir=str(evil), **SLOW, **EVIL)]
    return rl_training.compare(reference, others)


def test_the_page_refers_to_nothing_outside_itself(comparison):
    page = comparison.to_html()
    found = Links(page)
    inside = [reference.removeprefix("#") for reference in found.references]
    assert [reference for reference in found.references if not reference.startswith("#")] == []
    assert len(found.ids) == len(set(found.ids))
    assert set(inside) <= set(found.ids)
    assert {"script", "link", "img", "iframe", "object", "base"} & found.tags == set()
    addresses = set(re.findall(r'https?://[^"\s<]*', page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not places


def test_the_page_shows_the_numbers_and_escapes_what_comes_from_runs(comparison):
    page = comparison.to_html()
    assert "<script" not in page
    assert "/&lt;script&gt;$\\x$<" in page
    assert "{&#34;&lt;script&gt;&#34;: 1}" in page
    text = " ".join(Links(page).text)
    assert comparison.verdicts[0].text in text
    for title in ("Scores", "Probability of improvement", "Performance profile", "Sample efficiency"):
        assert title in text
    assert "2.500 [1.000, 4.000]" in text
    assert page.count("<svg") == 4
    assert "currentColor" in page
    assert "#010203" not in page


def test_a_single_group_has_no_picture_of_improvement():
    page = rl_training.compare(finished_run(1.0)).to_html()
    assert page.count("<svg") == 2  # scores and profile; there is no evaluation during training
    assert "Probability of improvement" not in page


def test_a_few_groups_are_columns_and_many_are_rows(comparison):
    lines = comparison.lines(width=120)
    assert re.split(r"  +", lines[2])[0] == "group"
    assert [line.split()[1] for line in lines if line.startswith("IQM")] == ["2.500"]
    assert not any(line.startswith("IQM") for line in comparison.lines(width=40))
    assert comparison.verdicts[0].text in lines


def test_settings_are_wrapped_between_words_where_that_leaves_each_group_a_column():
    first = group_of_runs(100.0, 200.0, 300.0, learning_rate=1e-5, rollout_steps=64, batch_size=64)
    second = group_of_runs(10.0, 20.0, 30.0, learning_rate=3e-3, rollout_steps=128, batch_size=128)
    comparison = rl_training.compare(*first, *second)
    lines = comparison.lines(width=80)
    start = next(i for i, line in enumerate(lines) if line.startswith("settings"))
    end = next(i for i, line in enumerate(lines) if line.startswith("seeds"))
    words = [word.strip(",") for line in lines[start:end] for word in line.split()[line.startswith("settings") :]]
    of_first = ["learning_rate=1e-05", "rollout_steps=64", "batch_size=64"]
    of_second = ["learning_rate=0.003", "rollout_steps=128", "batch_size=128"]
    assert sorted(words) == sorted(of_first + of_second)
    assert max(map(len, lines[start : end + 1])) <= 80
    assert lines[start].split()[1] != lines[start].split()[-1]  # both groups begin in this line


def test_the_frames_hold_the_groups_the_verdicts_and_the_runs(comparison):
    assert comparison.table["group"].tolist() == ["A", "B"]
    assert comparison.table["iqm"].tolist() == [2.5, 6.5]
    assert comparison.comparisons[["group", "finding"]].to_numpy().tolist() == [["B", "better"]]
    assert comparison.scores["score"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert comparison.scores["group"].tolist() == ["A"] * 4 + ["B"] * 4


def test_the_command_prints_json_and_writes_the_page(capfd, tmp_path):
    run_dirs = [str(run_dir) for run_dir in group_of_runs(1.0, 2.0, curve=CURVE)]
    assert run(["compare", *run_dirs, "--threshold", "3", "--html", str(tmp_path / "page.html"), "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["html"] == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    (group,) = printed["groups"]
    assert group["iqm"] == {"value": 1.5, "low": 1.0, "high": 2.0}
    assert group["optimality_gap"]["value"] == 1.5
    assert group["time_to_threshold"] == {"reached": 2, "runs": 2, "median": 400, "low": 400, "high": 400}
    assert [each["seed"] for each in group["runs"]] == [0, 1]
    assert (printed["run_id"], printed["comparisons"]) == (None, [])


def test_the_command_replaces_an_earlier_comparison_and_no_other_file(capfd, tmp_path):
    run_dirs = [str(run_dir) for run_dir in group_of_runs(1.0, 2.0)]
    page, report, config = tmp_path / "page.html", tmp_path / "report.html", tmp_path / "my.yaml"
    rl_training.report(run_dirs[0], report)
    config.write_text("algo: ppo")
    for _ in range(2):
        assert run(["compare", *run_dirs, "--html", str(page)]) == 0
    for path, other in ((report, "report-comparison.html"), (config, "my-comparison.html")):
        before = path.read_bytes()
        assert run(["compare", *run_dirs, "--html", str(path)]) == 2
        told = capfd.readouterr().err
        assert f"{path} exists and is no comparison of `rl-training compare`" in told
        assert f"name another file, such as {tmp_path / other}" in told
        assert path.read_bytes() == before
    assert run(["compare", *run_dirs, "--html", str(tmp_path / "missing/page.html")]) == 2
    assert "missing is not a folder, expected one in which page.html can be written" in capfd.readouterr().err


def test_the_command_prints_the_tables_and_the_verdict(capfd):
    run_dirs = [*group_of_runs(1.0, 2.0, **SLOW), *group_of_runs(3.0, 4.0)]
    assert run(["compare", *map(str, run_dirs)]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("CartPole-v1, heldout/return_mean after 1,000 steps, 95 % intervals, threshold 475 (")
    assert "A and B can't be told apart" in printed


def test_the_command_refuses_what_is_not_comparable(capfd):
    run_dirs = [finished_run(1.0), finished_run(1.0, total_timesteps=2_000)]
    assert run(["compare", *map(str, run_dirs)]) == 2
    assert "total_timesteps (another budget)" in capfd.readouterr().err
