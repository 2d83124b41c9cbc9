"""The exchange itself is tested in test_collective.py (mirrored devices) and tests/claims."""

from unittest.mock import create_autospec

import pytest
from tensorflow.python.eager import context

from paceline.engines import network
from paceline.experiment.recipes.table import get_recipe
from paceline.job import Cluster, Job, Place


def test_tensorflow_still_has_the_private_names_that_set_its_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this fails after an upgrade, TensorFlow gives up a worker after 10 s on a slow link."""
    of_tensorflow = create_autospec(context.Context, instance=True)  # with its own signatures
    monkeypatch.setattr(context, "context", lambda: of_tensorflow)
    cluster = Cluster(("one:1", "two:2"), index=1)
    network._raise_heartbeat_timeout(
        Job(get_recipe("smoke"), Place(workers=2, stall_timeout=30.0), cluster=cluster)
    )
    (given,) = of_tensorflow.configure_coordination_service.mock_calls
    assert given.kwargs["heartbeat_timeout_in_ms"] == 60_000
    (job,) = given.kwargs["coordinated_jobs"]
    assert (job.name, job.num_tasks) == ("worker", 2)
