"""The files of a user's project: rendered from templates, or those of this repository as they are."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rl_training import __version__

PACKAGE = Path(__file__).resolve().parents[1]
WHEELS = "wheels"
"""The folder of the wheel that a project's images install."""
EXECUTABLE = (
    "docker/backup.sh",
    "docker/restore.sh",
    "docker/make_secrets.sh",
    "docker/make_certificate.sh",
    "docker/with_password.sh",
    "docker/answers.py",
    "docker/postgres/init.sh",
)
_AS_THEY_ARE = (
    "docker-compose.yml",
    "docker-compose.tls.yml",
    "docker/basic_auth.ini",
    "docker/nginx.conf",
    "docker/pools/docker.json",
    "docker/pools/kubernetes.json",
    "constraints.txt",
    *EXECUTABLE,
)
_TEMPLATES = {
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "{package}/__init__.py": "package_init.py",
    "{package}/tank.py": "env.py",
    "tests/test_tank.py": "env_test.py",
    "configs/tank.yaml": "config.yaml",
    "prefect.yaml": "prefect.yaml",
    ".gitignore": "gitignore",
    ".dockerignore": "dockerignore",
    ".env": "env",
}
_DOCKERFILE = "docker/Dockerfile"


def render_files(package: str) -> dict[str, str]:
    """Returns the text of every file of a project, by its path within the project.

    Args:
        package: The name of the project's Python package.
    """
    names = {"package": package, "name": package.replace("_", "-"), "version": __version__}
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("template")),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # these are no web pages
    )
    files = {
        path.format(package=package): templates.get_template(f"{template}.jinja").render(names)
        for path, template in _TEMPLATES.items()
    }
    files |= {path: _read_shipped(path) for path in _AS_THEY_ARE}
    return files | {
        _DOCKERFILE: _make_dockerfile(templates),
        f"{WHEELS}/.gitkeep": "",  # git keeps no empty folder, and the Dockerfile copies this one
    }


def _make_dockerfile(templates: Environment) -> str:
    """Returns our own Dockerfile with other stages for the worker, which install the wheel and the project."""
    text = _read_shipped(_DOCKERFILE)
    for first, last, template in (
        ("# What changes least often", "# MuJoCo needs", "install_worker.Dockerfile"),
        ("FROM rendering AS worker", None, "worker.Dockerfile"),
    ):
        before, begin, rest = text.partition(first)
        after = "" if last is None else last + rest.partition(last)[2]
        assert begin, f"{_DOCKERFILE} has no line that begins with {first!r}"
        text = before + templates.get_template(f"{template}.jinja").render() + after
    return text


def _read_shipped(path: str) -> str:
    """Returns the text of a file of this repository, which the installed package has in a folder of its own."""
    installed, repository = PACKAGE / "deployments" / path, PACKAGE.parent / path
    return (installed if installed.is_file() else repository).read_text(encoding="utf-8")
