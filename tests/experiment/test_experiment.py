"""An experiment: its rules and its digest."""

import dataclasses

import pytest

from paceline.errors import UserError
from paceline.experiment.experiment import Loss, Optimizer, Schedule, Sync
from paceline.experiment.recipes.table import get_recipe


@pytest.mark.parametrize(
    "changes", [*({"seed": 1}, {"replicas": 2}, {"epochs": 2.5}, {"precision": "bfloat16"})]
)
def test_whatever_decides_the_numbers_changes_the_digest(changes):
    smoke = get_recipe("smoke")
    assert dataclasses.replace(smoke, **changes).digest() != smoke.digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"precision": "float64"},
            "precision is 'float64'; it must be one of 'float32', 'bfloat16', 'float16'",
        ),
        (
            {"loss": Loss(class_weights="equal")},
            "loss.class-weights is 'equal'; it must be numbers, or 'balanced'",
        ),
        ({"sync": Sync(method="rarely")}, "sync.method is 'rarely'; it must be one of"),
        ({"replicas": 0}, "replicas is 0; it must be 1 to 65,536"),
        (
            {"global_batch_size": 31},
            "global-batch-size 31 cannot be divided among 4 replicas; use 28",
        ),
        ({"epochs": 0.0}, "nothing to train"),
        ({"sync": Sync(max_staleness=4)}, "sync.max-staleness is 4 with sync.method gradients"),
        ({"optimizer": Optimizer(beta_2=1.0)}, "optimizer.beta-2 is 1.0; it must be 0 to below 1"),
        ({"schedule": Schedule(boundaries=(1, 2), factors=(0.1,))}, "must have the same length"),
    ],
)
def test_an_experiment_made_in_python_is_checked(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(get_recipe("smoke"), **changes)
