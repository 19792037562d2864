"""Policy files with correct hashes and wrong contents are refused in one line, before they use any memory."""

from __future__ import annotations

import io
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from received_runs import made_elsewhere, received
from test_checkpoint_damage import by_hand, seal

from rl_training.cli.app import run
from rl_training.errors import UserError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint.plain_state import policy_sha256
from rl_training.runtime.workflows import load_policy

GOLDEN = Path(__file__).parent / "golden" / "ppo_format_1" / "step_000000000064"

Edit = Callable[[dict[str, Any]], Any]


def given(**entries: Any) -> Edit:
    return lambda state: {**state, **entries}


def weight(change: Callable[[torch.Tensor], Any]) -> Edit:
    """Changes the first of the weights."""

    def edit(state: dict[str, Any]) -> Any:
        name = next(iter(state["weights"]))
        return {**state, "weights": {**state["weights"], name: change(state["weights"][name])}}

    return edit


def box(**entries: Any) -> Edit:
    description = {"type": "Box", "low": -1.0, "high": 1.0, "shape": [4], "dtype": "float32"}
    return given(observation_space={**description, **entries})


def discrete(**entries: Any) -> Edit:
    return given(action_space={"type": "Discrete", "n": 2, "start": 0, "dtype": "int64", **entries})


def statistics(**entries: Any) -> Edit:
    return lambda state: {**state, "observation_normalizer": {**state["observation_normalizer"], **entries}}


def array(*numbers: float, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    return {"__ndarray__": torch.tensor(numbers, dtype=dtype)}


def holds_itself(state: dict[str, Any]) -> Any:
    state["more"] = []
    state["more"].append(state["more"])
    return state


def doubled(state: dict[str, Any]) -> Any:
    """A list of two times a list of two times a list, and so on: a kilobyte that stands for 2 ** 40 numbers."""
    inner: list[Any] = [0]
    for _ in range(40):
        inner = [inner, inner]
    return {**state, "more": inner}


def nested(depth: int, kind: type) -> Edit:
    def edit(state: dict[str, Any]) -> Any:
        inner: Any = 0
        for _ in range(depth):
            inner = kind([inner])
        return {**state, "more": inner}

    return edit


def nested_space(depth: int) -> dict[str, Any]:
    space: dict[str, Any] = {"type": "Discrete", "n": 4, "start": 0, "dtype": "int64"}
    for _ in range(depth):
        space = {"type": "Tuple", "spaces": [space]}
    return space


EDITS: dict[str, Edit] = {
    "a weight of another shape": weight(lambda w: w[..., :1].clone()),
    "a weight of another dtype": weight(lambda w: w.double()),
    "a weight of whole numbers": weight(lambda w: w.long()),
    "a weight that is complex": weight(lambda w: w.to(torch.complex64)),
    "a weight transposed": weight(lambda w: torch.empty(w.shape[::-1]).permute(*range(w.dim())[::-1])),
    "a weight that repeats one number": weight(lambda w: torch.zeros(1).expand(w.shape)),
    "a weight of terabytes": weight(lambda w: torch.zeros(1).expand(10**6, 10**6)),
    "a weight with overlapping rows": weight(lambda w: torch.zeros(100).as_strided((50, 50), (1, 1))),
    "an empty weight": weight(lambda w: torch.zeros(0)),
    "an empty weight with a huge side": weight(lambda w: torch.zeros(0, 10**15)),
    "a sparse weight": weight(lambda w: w.to_sparse()),
    "a weight without memory": weight(lambda w: w.to("meta")),
    "a parameter": weight(torch.nn.Parameter),
    "a weight that wants a gradient": weight(lambda w: w.clone().requires_grad_()),
    "a number for a weight": weight(lambda w: 1.0),
    "a list for a weight": weight(lambda w: w.tolist()),
    "an array for a weight": weight(lambda w: {"__ndarray__": w}),
    "a missing weight": lambda state: {**state, "weights": dict(list(state["weights"].items())[1:])},
    "one weight more": lambda state: {**state, "weights": {**state["weights"], "more": torch.zeros(2)}},
    "a number for a weight's name": lambda state: {**state, "weights": {**state["weights"], 7: torch.zeros(2)}},
    "no weights": given(weights={}),
    "a list of weights": given(weights=[torch.zeros(2)]),
    "no mapping of weights": given(weights=None),
    "no spaces": lambda state: {"weights": state["weights"]},
    "no statistics": lambda state: {k: v for k, v in state.items() if k != "observation_normalizer"},
    "text for a space": given(observation_space="Box"),
    "nothing for a space": given(observation_space=None),
    "an unknown space": given(observation_space={"type": "Sequence"}),
    "a Discrete of 10**12 actions": discrete(n=10**12),
    "a Discrete of 10**12 observations": given(
        observation_space={"type": "Discrete", "n": 10**12, "start": 0, "dtype": "int64"}
    ),
    "a Discrete of none": discrete(n=0),
    "a Discrete of -1": discrete(n=-1),
    "a Discrete of 1.5": discrete(n=1.5),
    "a Discrete beyond int64": discrete(n=10**30),
    "a Discrete of text": discrete(n="2"),
    "a MultiDiscrete of 10**12": given(
        action_space={"type": "MultiDiscrete", "nvec": [10**12, 10**12], "start": [0, 0], "dtype": "int64"}
    ),
    "a MultiBinary of 10**11": given(action_space={"type": "MultiBinary", "n": 10**11}),
    "a Box of 10**11 numbers": box(shape=[10**11]),
    "a Box of 10**6 x 10**6 x 10**6": box(shape=[10**6] * 3),
    "an image of 10**11 pixels": box(shape=[3, 10**6, 10**5], low=0, high=255, dtype="uint8"),
    "an image of a million channels": box(shape=[10**6, 1, 1], low=0, high=255, dtype="uint8"),
    "a Box of -1 numbers": box(shape=[-1]),
    "a Box of text": box(shape="4"),
    "a Box of objects": box(dtype="object"),
    "a Box of long words": box(dtype="S1000000000"),
    "a Box of arrays": box(dtype="(1000,1000,1000)f8"),
    "a Box with NaN bounds": box(low=float("nan")),
    "a Box with bounds the wrong way": box(low=2.0),
    "a Box with too few bounds": box(low=[0.0, 1.0]),
    "a Box with no bounds": lambda state: {**state, "observation_space": {"type": "Box", "shape": [4]}},
    "a space in itself, 50 times": given(observation_space=nested_space(50)),
    "a Dict with a key that is a list": given(observation_space={"type": "Dict", "spaces": [[[], nested_space(0)]]}),
    "statistics of another shape": statistics(mean=array(0.0)),
    "statistics of another dtype": statistics(mean=array(0.0, 0.0, 0.0, 0.0, dtype=torch.float32)),
    "statistics that are NaN": statistics(squares=array(*[float("nan")] * 4)),
    "statistics that are infinite": statistics(mean=array(*[float("inf")] * 4)),
    "a negative sum of squares": statistics(squares=array(-1.0, -1.0, -1.0, -1.0)),
    "a negative count": statistics(count=-1),
    "a count that is NaN": statistics(count=float("nan")),
    "a count of text": statistics(count="12"),
    "an array of objects": statistics(mean={"__ndarray__": torch.zeros(8), "dtype": "|O", "shape": [1]}),
    "an array of a terabyte": statistics(mean={"__ndarray__": torch.zeros(8), "dtype": "<f8", "shape": [10**11]}),
    "an array of long words": statistics(mean={"__ndarray__": torch.zeros(8), "dtype": "|S1000000000", "shape": [1]}),
    "a list that holds itself": holds_itself,
    "a list that doubles": doubled,
    "lists 200 deep": nested(200, list),
    "tuples 400 deep": nested(400, tuple),
    "a million values": given(more=[0] * 10**6),
    "a key of tuples": given(more={(1, (2, (3,))): 1}),
    "a number of 2,000 bits": statistics(count=2**2000),
    "bytes": given(more=b"bytes"),
    "a set": given(more={1, 2}),
    "a dtype": given(more=torch.float32),
    "a size": given(more=torch.Size([1])),
}


@pytest.fixture
def bounded() -> Iterator[None]:
    """Limits this process to half a gigabyte more than it has; larger allocations fail."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**29, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def forge(path: Path, data: bytes, state: Any = None) -> Path:
    """Puts a policy file into a copy of a real checkpoint, with all hashes right, that of the policy's values too."""
    shutil.copytree(GOLDEN, path)
    (path / "policy.pt").write_bytes(data)
    try:
        sha256 = {"policy_sha256": policy_sha256(state)} if state is not None else {}
    except (TypeError, RuntimeError, NotImplementedError, RecursionError):
        sha256 = {}
    seal(path, **sha256)
    return path


def saved(state: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file, **options)
    return file.getvalue()


def good() -> dict[str, Any]:
    state = torch.load(GOLDEN / "policy.pt", weights_only=True)
    assert isinstance(state, dict)
    return state


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_policy(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2_000
    return str(caught.value)


def test_the_policy_that_the_edits_begin_with_is_loaded(tmp_path: Path) -> None:
    assert load_policy(forge(tmp_path / "step_1", saved(good()), good())).act([[0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("kind", EDITS)
@pytest.mark.usefixtures("bounded")
def test_wrong_contents_with_right_hashes_are_refused(tmp_path: Path, kind: str) -> None:
    state = EDITS[kind](good())
    repeats = kind in ("a list that holds itself", "a list that doubles", "a weight of terabytes")
    refused(forge(tmp_path / "step_1", saved(state), None if repeats else state))


def rezipped(change: Callable[[str, bytes], list[tuple[str, bytes, int]]]) -> bytes:
    """A real policy file with rewritten members; the change gives their names, bytes and compression."""
    source, target = zipfile.ZipFile(GOLDEN / "policy.pt"), io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for item in source.infolist():
            for name, data, compression in change(item.filename, source.read(item.filename)):
                archive.writestr(name, data, compression)
    return target.getvalue()


def same(name: str, data: bytes) -> list[tuple[str, bytes, int]]:
    return [(name, data, zipfile.ZIP_STORED)]


def pickled(program: bytes) -> bytes:
    return rezipped(lambda name, data: same(name, program if name.endswith("data.pkl") else data))


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "compressed numbers": lambda: rezipped(
        lambda name, data: [(name, data, zipfile.ZIP_DEFLATED if "/data/" in name else zipfile.ZIP_STORED)]
    ),
    "a compressed pickle of 20 megabytes": lambda: rezipped(
        lambda name, data: [(name, data + bytes(2 * 10**7) * name.endswith("data.pkl"), zipfile.ZIP_DEFLATED)]
    ),
    "storages that are too long": lambda: rezipped(lambda name, data: same(name, data + bytes("/data/" in name))),
    "storages that are missing": lambda: rezipped(lambda name, data: [] if "/data/" in name else same(name, data)),
    "no pickle": lambda: rezipped(lambda name, data: [] if "data.pkl" in name else same(name, data)),
    "numbers of the other byte order": lambda: rezipped(
        lambda name, data: same(name, b"big" if name.endswith("byteorder") else data)
    ),
    "the format before zip archives": lambda: saved(good(), _use_new_zipfile_serialization=False),
    "TorchScript": lambda: rezipped(
        lambda name, data: [*same(name, data), *(same("archive/constants.pkl", data) if "data.pkl" in name else [])]
    )[:-1],
    "lists 200,000 deep": lambda: pickled(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "tuples 200,000 deep": lambda: pickled(b"\x80\x02)" + b"\x85" * 200_000 + b"."),
    "a memo of billions": lambda: pickled(b"\x80\x02]r\xff\xff\xff\xff."),
    "text of gigabytes": lambda: pickled(b"\x80\x02X\xff\xff\xff\xffa."),
    "bytes of terabytes": lambda: pickled(b"\x80\x05\x8e" + b"\xff" * 8 + b"."),
    "a number of gigabytes": lambda: pickled(b"\x80\x02\x8b\xff\xff\xff\x7f."),
    "half a character": lambda: pickled(b"\x80\x02X\x03\0\0\0\xed\xa0\x80."),
    "marks without an end": lambda: pickled(b"\x80\x02" + b"(" * 10**6 + b"."),
    "nothing on the stack": lambda: pickled(b"\x80\x02."),
    "no end": lambda: pickled(b"\x80\x02}"),
    "a pickle by hand": lambda: by_hand({"weights": {}, "more": [1]}),
}


@pytest.mark.parametrize("kind", ARCHIVES)
@pytest.mark.usefixtures("bounded")
def test_archives_that_torch_never_writes_are_refused(tmp_path: Path, kind: str) -> None:
    assert "policy.pt is refused" in refused(forge(tmp_path / "step_1", ARCHIVES[kind]()))


def test_a_network_of_settings_that_the_file_does_not_hold_is_refused(tmp_path: Path) -> None:
    path = forge(tmp_path / "step_1", saved(good()), good())
    config = (path / "config.yaml").read_text()
    for hidden in ("[1000000000]", "[300000, 300000]", str([1] * 3_000)):
        changed = config.replace("hidden:\n  - 3\n", f"hidden: {hidden}\n")
        assert changed != config
        (path / "config.yaml").write_text(changed)
        seal(path)
        assert "weights do not fit the network of these settings" in refused(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_elsewhere(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"network": {"hidden": [40_000, 40_000]}}, "weights do not fit the network of these settings"),  # of 6.4 GB
        ({"num_envs": 60_000}, "the checkpoint has 8 environments; the settings have 60000"),
        ({"num_envs": 60_000, "vectorization": "async"}, "the checkpoint has 8 environments; the settings have 60000"),
        ({"num_envs": 10**7}, "num_envs: got 10000000, expected less than or equal to 65536"),
    ],
)
@pytest.mark.parametrize("fine_tune", [False, True])
def test_a_resume_makes_nothing_of_a_size_that_the_checkpoint_does_not_have(
    settings: dict[str, Any],
    words: str,
    fine_tune: bool,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    run_dir = received(made, tmp_path / "run", settings)
    assert run(["resume", str(run_dir), "--no-track", *(["--fine-tune"] if fine_tune else [])]) == 2
    (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert words in error
    assert max(path.name for path in (run_dir / "checkpoints").glob("step_*")) == "step_000000000064"
    with pytest.raises(UserError, match=words):
        DefaultExperimentManager().resume(run_dir, fine_tune=fine_tune)
    assert not list((tmp_path / "home").glob("runs/*"))
