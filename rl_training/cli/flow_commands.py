"""The commands that run a flow in this process: `flow train`, `resume`, `evaluate`, `promote` and `retrain`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter, validators

from rl_training.cli.options import AllowModule, Candidate, Config, FineTune, Force, Json, Rules, Set, Source
from rl_training.cli.output import result_stream, write_result
from rl_training.cli.training_end import finish, keeping_out, source_stays

flow = App(name="flow", help="The same as a Prefect flow, with promotion and a report.")

StartFrom = Annotated[
    Literal["champion", "scratch"], Parameter(help="The champion's weights, where there is a champion, or scratch.")
]
MinHours = Annotated[
    float, Parameter(validator=validators.Number(gte=0), help="Age of the champion before which nothing is due.")
]
Policy = Annotated[
    str, Parameter(help="As a rule models:/NAME@champion; else another version, an MLflow run or a directory.")
]
Episodes = Annotated[
    int | None, Parameter(validator=validators.Number(gte=1), help="By default the config's promotion.episodes.")
]
RollBack = Annotated[bool, Parameter(help="Make the champion before champion again where this one has dropped.")]


@flow.command
def train(*, config: Config, set_: Set = (), json: Json = False) -> int:
    """Run train-flow: validate, train, evaluate, promote, report."""
    with result_stream() as out:
        from rl_training.cli.progress_display import make_progress
        from rl_training.services.flow_runner import run_train_flow

        return finish(run_train_flow(config, set_, [make_progress()]), out, json)


@flow.command
def resume(
    source: Source,
    *,
    fine_tune: FineTune = False,
    set_: Set = (),
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Run resume-flow: train on from a checkpoint, then evaluate, promote, report."""
    with source_stays(source), keeping_out(source), result_stream() as out:
        from rl_training.cli.progress_display import make_progress
        from rl_training.services.flow_runner import run_resume_flow

        summary = run_resume_flow(source, set_, [make_progress()], fine_tune=fine_tune, allow_modules=allow_module)
        return finish(summary, out, json)


@flow.command
def retrain(
    *, config: Config, set_: Set = (), start: StartFrom = "champion", min_hours: MinHours = 0.0, json: Json = False
) -> int:
    """Run retrain-flow: as train-flow, with a seed of its own, from the champion's weights, where that is due."""
    with result_stream() as out:
        from rl_training.cli.progress_display import make_progress
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
    """Run evaluate-flow: play fresh episodes, and say of a champion whether it is as good as when it was promoted."""
    with keeping_out(source), result_stream() as out:
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
    """Run promote-flow: let a candidate play against the champion, and make it champion if it is better."""
    with keeping_out(source), result_stream() as out:
        from rl_training.promotion.decision import format_promotion
        from rl_training.services.flow_runner import run_promote_flow

        result = run_promote_flow(source, set_, force=force, allow_modules=allow_module)
        write_result(out, result, format_promotion(result), as_json=json)
        return 0
