"""The check of `rl-training doctor` for champions that no floor has judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rl_training.errors import TrackingError
from rl_training.promotion.champion_history import get_number
from rl_training.promotion.decision_writing import NUMBERS_TAG
from rl_training.promotion.gate import FLOORS, find_judges
from rl_training.promotion.model_registry import get_champion
from rl_training.tracking.json_files import parse_json
from rl_training.tracking.mlflow_health import LOOKED_AT, CheckResult
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

ADVICE = f"set {FLOORS[0]}, or one of {', '.join(FLOORS[1:])}, and offer the next candidate"


def check_floors() -> Iterator[CheckResult]:
    """Checks that a floor has judged each champion; yields nothing if MLflow, which has its own check, is no help."""
    try:
        client = connect(resolve_tracking_uri())
        models = client.search_registered_models(max_results=LOOKED_AT)
        champions = [champion for model in models if (champion := get_champion(client, model.name)) is not None]
    except Exception:  # `check_mlflow` reports it
        return
    for champion in champions:
        judges = _read_judges(champion)
        if judges is not None and not set(judges) & set(FLOORS):
            text = f"the champion of {champion.name}, version {get_number(champion)}, was promoted without a floor"
            yield CheckResult("floors", "note", text, ADVICE)


def _read_judges(champion: ModelVersion) -> tuple[str, ...] | None:
    """Returns what judged a champion, or None if its tags don't say: it was made champion by hand."""
    try:
        numbers = parse_json(champion.tags.get(NUMBERS_TAG, "null"), f"the tag {NUMBERS_TAG}", dict[str, Any] | None)
    except TrackingError:
        return None
    return None if numbers is None else find_judges(numbers)
