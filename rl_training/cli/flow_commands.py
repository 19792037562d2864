"""The commands `flow train`, `resume`, `evaluate`, `promote` and `retrain`, which run a flow in this process."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter, validators

from rl_training.cli.options import (
    Algo,
    AllowModule,
    Candidate,
    Config,
    EnvId,
    FineTune,
    Force,
    Json,
    Rules,
    Set,
    Source,
    Timesteps,
    TrainingSeed,
    choose_settings,
)
from rl_training.cli.output import result_stream, write_result
from rl_training.cli.training_end import finish, forbid_imports_from, report_unchanged_source

flow = App(
    name="flow",
    help="Run a Prefect flow, which adds promotion, retries and a report.",
    default_parameter=Parameter(negative=(), show_default=False),
)

StartFrom = Annotated[
    Literal["champion", "scratch"],
    Parameter(help="Start from the champion's weights if there is a champion, or from scratch (default: champion)."),
]
MinHours = Annotated[
    float,
    Parameter(
        validator=validators.Number(gte=0),
        help="Skip the retraining if the champion is younger than this, in hours (default: 0).",
    ),
]
Policy = Annotated[
    str, Parameter(help="Usually models:/NAME@champion; or another version, an MLflow run or a directory.")
]
Episodes = Annotated[
    int | None, Parameter(validator=validators.Number(gte=1), help="Number of episodes (default: promotion.episodes).")
]
RollBack = Annotated[
    bool, Parameter(help="Restore the previous champion if this one plays worse than when it was promoted.")
]


@flow.command
def train(
    *,
    config: Config | None = None,
    env: EnvId = None,
    algo: Algo = None,
    timesteps: Timesteps = None,
    seed: TrainingSeed = None,
    set_: Set = (),
    json: Json = False,
) -> int:
    """Run train-flow: validate, train, evaluate, promote, report."""
    settings, overrides = choose_settings(config, env, algo, timesteps, seed, set_)
    with result_stream() as out:
        from rl_training.api.progress_display import make_progress
        from rl_training.services.flow_runner import run_train_flow

        return finish(run_train_flow(settings, overrides, [make_progress()]), out, json)


@flow.command
def resume(
    source: Source,
    *,
    fine_tune: FineTune = False,
    set_: Set = (),
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Run resume-flow: resume training from a checkpoint, then evaluate, promote, report."""
    with report_unchanged_source(source), forbid_imports_from(source), result_stream() as out:
        from rl_training.api.progress_display import make_progress
        from rl_training.services.flow_runner import run_resume_flow

        summary = run_resume_flow(source, set_, [make_progress()], fine_tune=fine_tune, allow_modules=allow_module)
        return finish(summary, out, json)


@flow.command
def retrain(
    *, config: Config, set_: Set = (), start: StartFrom = "champion", min_hours: MinHours = 0.0, json: Json = False
) -> int:
    """Run retrain-flow: if a retraining is due, run train-flow with a new seed from the champion's weights."""
    with result_stream() as out:
        from rl_training.api.progress_display import make_progress
        from rl_training.services.flow_runner import run_retrain_flow

        summary = run_retrain_flow(config, set_, [make_progress()], start=start, min_hours=min_hours)
        return finish(summary, out, json)


@flow.command
def evaluate(
    source: Policy,
    *,
    episodes: Episodes = None,
    roll_back: RollBack = False,
    set_: Rules = (),
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Run evaluate-flow: play new episodes, and check whether the champion plays as well as when it was promoted."""
    with forbid_imports_from(source), result_stream() as out:
        from rl_training.api.promotion import RollbackResult
        from rl_training.api.summary import format_monitoring
        from rl_training.services.flow_runner import run_evaluate_flow

        result = run_evaluate_flow(source, set_, episodes=episodes, roll_back=roll_back, allow_modules=allow_module)
        lines = format_monitoring(result)
        if result["rolled_back"] is not None:
            lines += RollbackResult(**result["rolled_back"]).lines()
        write_result(out, result, lines, as_json=json)
        return 0


@flow.command
def promote(
    source: Candidate,
    *,
    set_: Rules = (),
    force: Force = None,
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Run promote-flow: compare a candidate with the champion, and promote the candidate if it is better."""
    with forbid_imports_from(source), result_stream() as out:
        from rl_training.promotion.decision import format_promotion
        from rl_training.services.flow_runner import run_promote_flow

        result = run_promote_flow(source, set_, force=force, allow_modules=allow_module)
        write_result(out, result, format_promotion(result), as_json=json)
        return 0
