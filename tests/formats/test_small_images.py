"""my-images for folders of small images."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.api.training import build_job
from paceline.cli.search import Search
from paceline.cli.settings_file import save_settings
from paceline.cli.train import Train
from paceline.experiment.recipes.table import get_recipe
from paceline.formats.arrays import save_arrays
from paceline.formats.small_images import recipe_for
from paceline.job import Job, Place, Run
from paceline.run_folder.folder import default_path
from paceline.run_folder.listing import train_command
from small_images import encode


@pytest.mark.parametrize(("shape", "flips"), [((28, 28), False), ((32, 30, 3), True)])
def test_small_images_get_a_small_network_and_gray_ones_no_mirror(tmp_path, shape, flips):
    for split in ("train", "test"):
        for name in ("0", "1"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "1.png").write_bytes(encode(np.zeros(shape, np.uint8)))
    found = recipe_for(str(tmp_path))
    assert (found.model.layout, found.data.image_size) == ("cifar", shape[0])
    assert found.augment.flip is flips
    for flag in ("--data.dir", "--data"):
        assert Train.of_recipe("my-images", [flag, str(tmp_path)]).experiment == found
        assert Search.of_recipe("my-images", [flag, str(tmp_path)]).experiment == found
    mine = replace(found, data=replace(found.data, dir=str(tmp_path)), epochs=2)
    command = ["train", "my-images", "--data.dir", str(tmp_path), "--epochs", "2"]
    assert train_command(mine, "my-images") == train_command(mine) == command
    assert build_job("my-images", {"data": {"dir": tmp_path}, "epochs": 2}, Place(), Run()) == Job(
        mine, run=Run(run_dir=default_path("my-images", mine))
    )


def test_a_file_of_settings_has_the_defaults_of_its_folder(tmp_path):
    save_arrays(tmp_path / "digits", (np.zeros((9, 28, 28), np.uint8), np.arange(9) % 3))
    folder, file = ["--data.dir", str(tmp_path / "digits")], tmp_path / "mine.toml"
    file.write_text(f'recipe = "my-images"\n[data]\ndir = "{folder[1]}"')
    mine = Train.of_recipe(str(file)).experiment
    assert mine.model.layout == "cifar"
    file.write_text('recipe = "my-images"')
    assert Train.of_recipe(str(file), folder).experiment == mine
    mirrored = replace(mine, augment=replace(mine.augment, flip=True))
    save_settings(tmp_path / "saved.json", "my-images", mirrored, Place(), Run())
    assert Train.of_recipe(str(tmp_path / "saved.json")).experiment == mirrored


def test_arrays_of_digits_keep_their_size(tmp_path):
    save_arrays(tmp_path / "digits", (np.zeros((9, 28, 28), np.uint8), np.arange(9) % 3))
    found = recipe_for(str(tmp_path / "digits"))
    assert (found.model.layout, found.data.image_size, found.augment.padding) == ("cifar", 0, 4)
    assert not found.augment.flip


def test_other_images_and_missing_folders_change_nothing(tmp_path):
    save_arrays(tmp_path / "photos", (np.zeros((4, 96, 96, 3), np.uint8), np.arange(4) % 2))
    for folder in (tmp_path / "photos", tmp_path / "nowhere", "s3://bucket/photos"):
        assert recipe_for(str(folder)) == get_recipe("my-images")
