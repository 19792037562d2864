"""The commands that list what there is: `configs` and `algorithms`."""

from __future__ import annotations

from rl_training.cli.options import Json
from rl_training.cli.output import format_table, result_stream, write_result


def configs(*, json: Json = False) -> int:
    """List the shipped configs, which `--config` takes by name."""
    with result_stream() as out:
        from rl_training.config.shipped_configs import list_shipped_configs
        from rl_training.experiment.loading import load_config

        found = {name: load_config(name) for name in list_shipped_configs()}
        values = [
            {"name": name, "algo": each.algo, "env_id": each.env_id, "total_timesteps": each.total_timesteps}
            for name, each in found.items()
        ]
        rows = [(name, each.algo, each.env_id, f"{each.total_timesteps:,}") for name, each in found.items()]
        write_result(out, {"configs": values}, format_table(("name", "algo", "env", "steps"), rows), as_json=json)
        return 0


def algorithms(*, json: Json = False) -> int:
    """List the algorithms that a config can use."""
    with result_stream() as out:
        from rl_training.experiment.registry import list_algorithms

        names = list_algorithms()
        write_result(out, {"algorithms": names}, names, as_json=json)
        return 0
