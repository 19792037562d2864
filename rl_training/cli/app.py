"""The command line `rl-training`: each command is a thin wrapper around the library.

Heavy modules are imported only when a command needs them, so that `--help` is fast. Exit codes: 0 success; 1 a run has
failed; 2 an error that the user can correct; 75 stopped by a signal, can be resumed; 129, 130 and 143 stopped by
SIGHUP, SIGINT and SIGTERM before there was anything to resume.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter, validators

from rl_training import __version__
from rl_training.cli import (
    champion_commands,
    compare_command,
    film_commands,
    flow_commands,
    list_commands,
    maintenance_commands,
    project_commands,
    report_command,
    reproduce_command,
    server_commands,
    sweep_commands,
)
from rl_training.cli.options import (
    Algo,
    AllowModule,
    Config,
    EnvId,
    FineTune,
    Json,
    Set,
    Source,
    Timesteps,
    TrainingSeed,
    choose_settings,
)
from rl_training.cli.output import log_to_stderr, result_stream, write_result
from rl_training.cli.training_end import EXIT_FAILED, StoppedEarly, finish, forbid_imports_from, report_unchanged_source
from rl_training.errors import RLTrainingError, UserError, find_user_code_cause
from rl_training.runs.stopping import EXIT_STOPPED, Terminated, interrupt_on_signals
from rl_training.system.import_pause import pause_garbage_collection
from rl_training.system.open_file_limit import explain_too_many_files, raise_limit
from rl_training.system.paths import make_paths_absolute, require_usable_folders
from rl_training.system.standard_streams import keep_standard_streams

EXIT_USER_ERROR, EXIT_INTERRUPTED = 2, 130

DEEP_VALIDATION = {"episodes": 20, "max_steps": 100_000}

app = App(
    name="rl-training",
    help="Train reinforcement-learning agents: validate, train, evaluate, promote, resume.",
    version=__version__,
    default_parameter=Parameter(negative=(), show_default=False),
    suppress_keyboard_interrupt=False,  # `run` handles it
)
for command in (
    *(champion_commands.promote, champion_commands.rollback),
    *(film_commands.record, film_commands.enjoy),
    compare_command.compare,
    project_commands.init,
    report_command.report,
    *(list_commands.runs, list_commands.configs, list_commands.algorithms),
    *(server_commands.ui, server_commands.deploy, server_commands.doctor, server_commands.worker),
    *(maintenance_commands.clean, maintenance_commands.migrate),
    *(maintenance_commands.backup, maintenance_commands.restore),
):
    app.command(command)
app.command(flow_commands.flow)
app.command(sweep_commands.sweep)
app.command(reproduce_command.reproduce)

CheckedEnv = Annotated[
    str | None, Parameter(help="The Gymnasium id, with a module that registers it if necessary: module:Env-v0.")
]
CheckedAlgo = Annotated[str, Parameter(help="The algorithm to train with, if ENV_ID is given (default: ppo).")]
Episodes = Annotated[
    int | None,
    Parameter(validator=validators.Number(gte=1), help="Number of episodes (default: evaluation.final_episodes)."),
]
Seed = Annotated[
    int | None,
    Parameter(
        validator=validators.Number(gte=0),
        help="Seed for the episodes (default: evaluation.seed).",
    ),
]
RunDir = Annotated[Path, Parameter(help="The directory of the run, or the folder of a sweep.")]
Seeds = Annotated[
    int | None,
    Parameter(
        validator=validators.Number(gte=1),
        help="Train this many runs, with seeds from the config's own on, and aggregate their results.",
    ),
]
NoTrack = Annotated[bool, Parameter(help="Do not log the run to MLflow; the run directory still contains everything.")]
Offline = Annotated[
    bool, Parameter(help="Start even if MLflow can't be reached; `rl-training sync` sends the run later.")
]
Deep = Annotated[bool, Parameter(help="Play 20 episodes of up to 100,000 steps each.")]
Shell = Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")]
NewRun = Annotated[bool, Parameter(help="Create a new MLflow run if the old one was deleted.")]


@app.command
def train(
    *,
    config: Config | None = None,
    env: EnvId = None,
    algo: Algo = None,
    timesteps: Timesteps = None,
    seed: TrainingSeed = None,
    seeds: Seeds = None,
    set_: Set = (),
    no_track: NoTrack = False,
    offline: Offline = False,
    json: Json = False,
) -> int:
    """Validate the environment, train, and evaluate the final policy on held-out episodes."""
    named, overrides = choose_settings(config, env, algo, timesteps, seed, set_)
    with result_stream() as out:
        from rl_training.experiment.loading import config_from_mapping, load_config

        # before importing torch, to report a typo at once
        settings = load_config(named, overrides) if isinstance(named, str) else config_from_mapping(named, overrides)
        if seeds is not None:
            return sweep_commands.train_seeds(settings, seeds, out, track=not no_track, offline=offline, json=json)
        with pause_garbage_collection():
            from rl_training.api.train_and_resume import train as train_completely

        summary = train_completely(settings, track=not no_track, offline=offline, progress=True)
        return finish(summary, out, json, offline=offline or no_track)


@app.command
def resume(
    source: Source,
    *,
    fine_tune: FineTune = False,
    set_: Set = (),
    allow_module: AllowModule = (),
    no_track: NoTrack = False,
    offline: Offline = False,
    json: Json = False,
) -> int:
    """Resume training from a checkpoint, or from the newest good checkpoint of a run."""
    with report_unchanged_source(source), forbid_imports_from(source), result_stream() as out:
        with pause_garbage_collection():
            from rl_training.api.train_and_resume import resume_training

        summary = resume_training(
            source,
            set_,
            fine_tune=fine_tune,
            allow_modules=allow_module,
            track=not no_track,
            offline=offline,
            progress=True,
        )
        return finish(summary, out, json, offline=offline or no_track)


@app.command
def evaluate(
    source: Source,
    *,
    episodes: Episodes = None,
    seed: Seed = None,
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Evaluate the greedy policy of a checkpoint on held-out episodes."""
    with forbid_imports_from(source), result_stream() as out:
        from rl_training.api.summary import format_evaluation
        from rl_training.runtime.evaluation import select_evaluation_numbers
        from rl_training.runtime.workflows import evaluate_checkpoint
        from rl_training.tracking.checkpoint_sources import download_checkpoint

        checkpoint = download_checkpoint(source, wanted="policy")
        result = evaluate_checkpoint(checkpoint, episodes=episodes, seed=seed, allow_modules=allow_module)
        evaluation = select_evaluation_numbers(result.to_dict())
        values = {
            "checkpoint": checkpoint.address,
            "run_uid": checkpoint.run_uid,
            "num_timesteps": checkpoint.num_timesteps,
            "policy_sha256": checkpoint.policy_sha256,
            "evaluation": evaluation,
        }
        lines = [format_evaluation(evaluation), f"checkpoint: {checkpoint.address}"]
        write_result(out, values, lines, as_json=json)
        return 0


@app.command(name="validate-env")
def validate_env(
    env_id: CheckedEnv = None,
    *,
    config: Config | None = None,
    set_: Set = (),
    algo: CheckedAlgo = "ppo",
    deep: Deep = False,
    json: Json = False,
) -> int:
    """Check that an environment satisfies Gymnasium's contract and can be trained on."""
    if (env_id is None) == (config is None):
        raise UserError("validate-env takes either ENV_ID or --config FILE")
    with result_stream() as out:
        from rl_training.algorithms.space_checks import include_body_and_mask
        from rl_training.envs.validation.validate import validate_env as run_validation
        from rl_training.experiment.loading import config_from_mapping, load_config
        from rl_training.experiment.registry import get_algorithm

        if config is not None:
            settings = load_config(config, set_)
        else:
            settings = config_from_mapping({"algo": algo, "env_id": env_id, "total_timesteps": 10_000}, set_)
        bounds = DEEP_VALIDATION if deep else {"episodes": None, "max_steps": None}
        check_spaces = include_body_and_mask(get_algorithm(settings.algo).check_spaces, settings)
        report = run_validation(settings, check_spaces, **bounds)
        write_result(out, report.to_dict(), report.lines(), as_json=json)
        return 0 if report.ok else EXIT_USER_ERROR


@app.command
def sync(run_dir: RunDir, *, new_run: NewRun = False, allow_module: AllowModule = (), json: Json = False) -> int:
    """Send the data of a run or sweep that is not in MLflow, or in its other sinks, yet."""
    with result_stream() as out:
        from rl_training.sweeps.page.sweep_sync import is_sweep_dir, sync_sweep
        from rl_training.tracking.sinks.completion import sync_everything

        send = sync_sweep if is_sweep_dir(run_dir) else sync_everything
        report = send(run_dir, new_run=new_run, allow_modules=allow_module)
        write_result(out, report.to_dict(), report.lines(), as_json=json)
        return 0 if report.complete else EXIT_FAILED


@app.command
def completion(shell: Shell) -> int:
    """Print the script that completes commands and options in a shell."""
    with result_stream() as out:
        write_result(out, {}, app.generate_completion(shell=shell).splitlines(), as_json=False)
        return 0


def run(arguments: Sequence[str]) -> int:
    """Runs a command. Call it last in the process, because signals are ignored once the result is known.

    Args:
        arguments: The arguments after `rl-training`.

    Returns:
        The exit code.
    """
    log_to_stderr()
    try:
        with interrupt_on_signals():
            raise_limit()
            require_usable_folders()
            make_paths_absolute()
            code = app(arguments, result_action="return_value", exit_on_error=False, print_error=False)
    except (CycloptsError, UserError) as error:
        return _fail(error, EXIT_USER_ERROR)
    except RLTrainingError as error:
        # The traceback shows the author of an environment or callback where the error is.
        if (cause := find_user_code_cause(error)) is not None:
            traceback.print_exception(cause)
        return _fail(error, EXIT_FAILED)
    except StoppedEarly as error:
        return _fail(error, EXIT_STOPPED)
    except OSError as error:
        if advice := explain_too_many_files(error):
            return _fail(UserError(advice), EXIT_USER_ERROR)
        raise
    except KeyboardInterrupt as interruption:
        return interruption.exit_code if isinstance(interruption, Terminated) else EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _fail(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def main() -> NoReturn:
    """The entry point of the console script."""
    keep_standard_streams()
    sys.exit(run(sys.argv[1:]))
