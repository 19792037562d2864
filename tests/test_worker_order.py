"""The order in which a worker starts the flow runs that were missed."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse

from rl_training.services.worker.newest_first import NewestFirst

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NIGHTLY, OTHER = uuid4(), uuid4()


def due(hours: int, deployment: UUID = NIGHTLY, *, by_hand: bool = False, **parameters: Any) -> WorkerFlowRunResponse:
    """A flow run that was due some hours after noon."""
    run = FlowRun(
        flow_id=uuid4(),
        deployment_id=deployment,
        auto_scheduled=not by_hand,
        expected_start_time=NOON + timedelta(hours=hours),
        parameters=parameters,
    )
    return WorkerFlowRunResponse(work_pool_id=uuid4(), work_queue_id=uuid4(), flow_run=run)


def test_the_newest_missed_run_comes_alone_and_the_others_after_it() -> None:
    order, (first, second, third) = NewestFirst(), (due(0), due(1), due(2))
    assert order.arrange([first, second, third]) == [third]
    assert order.arrange([first, second]) == [second, first]
    later = due(3)
    assert order.arrange([first, later]) == [later]


def test_the_newest_stays_first_while_a_full_worker_can_not_start_it() -> None:
    order, (first, second) = NewestFirst(), (due(0), due(1))
    assert order.arrange([first, second]) == [second]
    assert order.arrange([first, second]) == [second, first]


def test_other_deployments_parameters_and_runs_by_hand_keep_their_places() -> None:
    order = NewestFirst()
    old, new, by_hand, second_by_hand = due(0), due(5), due(1, by_hand=True), due(2, by_hand=True)
    other, seeded = due(3, OTHER), due(4, seed=1)
    got = order.arrange([old, by_hand, second_by_hand, other, seeded, new])
    assert got == [new, by_hand, second_by_hand, other, seeded]
