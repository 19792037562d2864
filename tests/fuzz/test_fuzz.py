"""A sample of `make fuzz` with a fixed seed, and the faults that the fuzzer has found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from fuzz_edits import Case
from fuzz_run import GOOD, Child, Tally, fuzz
from fuzz_samples import FORMATS, make_samples

INPUTS = 130
"""The number of changed files of each format."""

FOUND = [
    Case("trainer/ppo", (("swap", 0, 0), ("crlf",)), True),  # a name in the archive that is no UTF-8
    Case("shard", (("twice", 0), ("insert", 0, 0, 1)), True),
    Case("policy/ppo", (("pickle flip", 140769, 98),), True),  # a control character in a message
    Case("policy/dqn", (("copy", 12, 0),), True),  # a message of many lines
    Case("config", (("repeat bytes", 0, 96, 200),), True),  # a thousand faults
    Case("overrides", (("set", 1, 28),), True),  # a text of 100,000 letters, in which an address was looked for
    Case("shipped.json", (("insert", 106, 2, 100),), True),  # a name of a file that is too long to be opened
    Case("overrides", (("insert", 0, 6, 5000),), True),  # thousands of lists in each other
    Case("policy/sac", (("set", 597871, 61),), True),  # a tensor of 100,000 numbers as the shape of a space
    Case("overrides", (("insert", 6, 14, 5000),), True),  # a key of 250,000 characters
    Case("record", (("wrap", 77, 100), ("wrap", 77, 100), ("wrap", 77, 100)), True),  # lists too deep to be written
    Case("segment", (("add", 628, 0, 42),), True),
]


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    folder = tmp_path_factory.mktemp("fuzz")
    make_samples(folder / "samples")
    child = Child(folder / "samples", folder / "work")
    yield child
    child.end()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_changed_files_of_all_formats_are_loaded_or_refused_in_one_line(child: Child) -> None:
    tally = Tally()
    for format in FORMATS:
        fuzz(child, format, INPUTS, 0, tally=tally)
    assert not tally.faults
    together = sum(tally.outcomes.values(), Counter[str]())
    assert set(together) == set(GOOD)
    assert set(tally.outcomes) == set(FORMATS)


@pytest.mark.parametrize("case", FOUND, ids=range(len(FOUND)))
@pytest.mark.filterwarnings("ignore")
def test_a_fault_that_was_found_is_refused(child: Child, case: Case) -> None:
    answer = child.ask(case)
    assert answer["outcome"] in GOOD, answer
