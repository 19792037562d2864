"""The structure of the code: import directions, lazy imports, and the size of folders, files and functions."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "mlflow", "prefect", "gymnasium", "pandas", "matplotlib", "scipy"}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for top in ("rl_training", "flows", "benchmarks")
    for path in sorted((ROOT / top).rglob("*.py"))
}
MODULES = {name: path for name, path in FILES.items() if name.startswith("rl_training.") and path.name != "__init__.py"}


def imported_after(code: str) -> set[str]:
    """Returns the top-level modules that a fresh interpreter holds after running `code`."""
    report = "\nimport sys; print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + report], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def command(*words: str) -> str:
    return f"from rl_training.cli.app import run\nassert run({list(words)!r}) == 0"


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["train", "--help"], ["flow", "train", "--help"], ["algorithms"]]
)
def test_help_and_lists_import_nothing_heavy(words):
    heavy = HEAVY if words == ["algorithms"] else HEAVY | {"pydantic", "numpy"}
    assert imported_after(command(*words)) & heavy == set()


@pytest.mark.parametrize(
    "module",
    [
        "rl_training",
        "rl_training.errors",
        "rl_training.config.algorithms.dqn",
        "rl_training.config.algorithms.ppo",
        "rl_training.config.algorithms.sac",
        "rl_training.config.parsing",
        "rl_training.experiment.registry",
        "rl_training.experiment.builtin",
        "rl_training.experiment.loading",
        "rl_training.runtime.callbacks",
    ],
)
def test_settings_and_registry_import_nothing_heavy(module):
    assert imported_after(f"import {module}") & HEAVY == set()


def test_training_needs_neither_mlflow_nor_prefect():
    trainers = ", ".join(f"rl_training.runtime.{name}_trainer" for name in ("ppo", "dqn", "sac"))
    code = f"import rl_training.experiment.default_manager, rl_training.runtime.workflows, {trainers}"
    assert imported_after(code) & {"mlflow", "prefect"} == set()


def test_unused_exports_are_not_imported():
    assert "torch" not in imported_after("from rl_training import load_config, register_algorithm, Callback")
    assert "torch" in imported_after("from rl_training import train_ppo")


def layers() -> list[list[str]]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = pyproject["tool"]["importlinter"]["contracts"][0]
    assert contract["type"] == "layers"
    return [[name.strip() for name in layer.split(":")] for layer in contract["layers"]]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_one_layer(module):
    homes = [name for layer in layers() for name in layer if module == name or module.startswith(name + ".")]
    assert len(homes) == 1, f"{module} is in {homes}; list it in one layer of [tool.importlinter] in pyproject.toml"


def test_no_folder_is_a_long_flat_list():
    folders = [path.parent for path in FILES.values() if path.name != "__init__.py"]
    sizes = {folder.relative_to(ROOT).as_posix(): folders.count(folder) for folder in folders}
    assert {folder: size for folder, size in sizes.items() if size > 15} == {}


def imports(path: Path) -> Iterator[str]:
    """The names that a module imports anywhere, its functions included, except for type checking alone."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        else:
            nodes += ast.iter_child_nodes(node)


def test_no_modules_import_each_other():
    known = {name.removesuffix(".__init__"): path for name, path in FILES.items()}

    def module_of(name: str) -> str:
        return name if name in known else name.rpartition(".")[0]

    graph = {name: {module_of(used) for used in imports(path)} & known.keys() - {name} for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # a CycleError names the modules of a circle


def test_import_directions_hold():
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_files_and_functions_stay_readable(path):
    text = path.read_text(encoding="utf-8")
    functions = [
        (node.name, node.end_lineno - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert text.count("\n") <= 300
    assert [(name, lines) for name, lines in functions if lines > 60] == []


@pytest.mark.parametrize("path", MODULES.values(), ids=MODULES)
def test_nothing_unpickles(path):
    """Worker processes talk to their parent through `multiprocessing` connections; no file is ever unpickled."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names & {f"pickle.{name}" for name in ("load", "loads", "Unpickler")} == set()
    assert modules & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"} == set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert arguments.get("weights_only") == "True" or arguments.get("allow_pickle") == "False"
