"""One promotion of a model at a time: the lease in the registry, the file lock, and the champion after two at once."""

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from mlflow_store import BAD, GOOD, WEAK, run_with_policy
from waiting import LIMIT

from rl_training.api.promotion import promote_candidate, roll_back
from rl_training.errors import TrackingError
from rl_training.promotion.model_registry import get_champion
from rl_training.promotion.promotion_lock import Lease, promotion_lock
from rl_training.system.paths import embedded_tracking_uri

MODEL = "CartPole-v1"
RULES = ["promotion.episodes=20"]


@pytest.mark.parametrize("order", [(WEAK, GOOD), (GOOD, WEAK)])
def test_of_two_at_once_the_better_is_champion(client, order):
    _, base = run_with_policy(BAD, seed=1)
    promote_candidate(base, RULES)
    candidates = [run_with_policy(gains, seed=2 + i)[1] for i, gains in enumerate(order)]
    results = {}

    def run(i):
        results[i] = promote_candidate(candidates[i], RULES)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    good = results[order.index(GOOD)]
    assert str(get_champion(client, MODEL).version) == good.version
    assert good.verdict.kind == "PROMOTE"


def test_the_recorded_result_of_20_simultaneous_pairs():
    """The result of `benchmarks/promotion/promotion_pairs.py`; a services test plays a small version."""
    record = json.loads((Path(__file__).parents[1] / "benchmarks/results/promotion-pairs.json").read_text())
    for kind in ("server", "sqlite"):
        result = record[kind]
        assert (result["pairs"], result["better_is_champion"], result["moments_without_champion"]) == (20, 20, 0)
        assert Counter(pair["first"] for pair in result["played"]) == {"worse": 10, "better": 10}
        assert [pair["champion"] for pair in result["played"]] == ["better"] * 20
        assert min(pair["overlap_seconds"] for pair in result["played"]) > 0
        against = Counter((pair["better"]["against"], pair["worse"]["against"]) for pair in result["played"])
        assert set(against) == {("base", "better"), ("worse", "base")}  # both orders came to pass


def test_only_one_holds_the_lease_and_the_registry_stays_clean(client):
    held, most, order = 0, 0, []

    def hold(name):
        nonlocal held, most
        with Lease(client, MODEL, seconds=20.0).hold(wait=LIMIT):
            held += 1
            most = max(most, held)
            time.sleep(0.05)
            order.append(name)
            held -= 1

    threads = [threading.Thread(target=hold, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert sorted(order) == [0, 1, 2]
    assert [model.name for model in client.search_registered_models()] == [f"promotion-lock.{MODEL}.3"]


def test_a_lease_that_is_not_renewed_is_taken_over_and_its_holder_notices(client):
    gone = Lease(client, MODEL, seconds=0.5)
    assert gone._create(1)  # and its process is gone: nobody renews it
    gone.check()
    with Lease(client, MODEL, seconds=0.5).hold(wait=LIMIT) as lease:
        lease.check()
        with pytest.raises(TrackingError, match="another one took over"):
            gone.check()


def test_a_lease_in_use_is_waited_for_no_longer_than_asked(client):
    with (
        Lease(client, MODEL, seconds=60.0).hold(wait=1.0),
        pytest.raises(TrackingError, match="did not end within 1 s"),
        Lease(client, MODEL, seconds=60.0).hold(wait=1.0),
    ):
        pass


def test_a_late_process_with_an_old_number_gets_no_lease(client):
    late = Lease(client, MODEL)
    for _ in range(2):
        with Lease(client, MODEL).hold(wait=LIMIT):
            pass
    assert not late._create(1)  # number 1 is free again, and 2 is there
    assert [model.name for model in client.search_registered_models()] == [f"promotion-lock.{MODEL}.2"]


def test_a_file_lock_serves_an_sqlite_store(client):
    uri = embedded_tracking_uri()
    with (
        promotion_lock(client, uri, MODEL),
        pytest.raises(TrackingError, match="another promotion of 'CartPole-v1' did not end within 0 s"),
        promotion_lock(client, uri, MODEL, wait=0.2),
    ):
        pass
    with promotion_lock(client, uri, MODEL), promotion_lock(client, uri, "another"):
        pass


def test_a_rollback_waits_for_a_promotion(client):
    for seed in range(2):
        promote_candidate(run_with_policy(WEAK, seed=seed)[1], RULES, force="a test")
    with promotion_lock(client, embedded_tracking_uri(), MODEL):
        rollback = threading.Thread(target=roll_back, args=(MODEL,), kwargs={"reason": "a test"})
        rollback.start()
        time.sleep(0.5)
        assert str(get_champion(client, MODEL).version) == "2"
    rollback.join()
    assert str(get_champion(client, MODEL).version) == "1"
