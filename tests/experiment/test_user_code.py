"""Functions named on the command line: found in modules and files, and clear lines where they are
not."""

import itertools
import sys

import pytest

from paceline.errors import UserError
from paceline.experiment.user_code import load_function

numbers = itertools.count()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def write_module(folder, text):
    """A module with a name that no other test has imported."""
    name = f"own_code_{next(numbers)}"
    (folder / f"{name}.py").write_text(text)
    return name


@pytest.mark.parametrize("package", ["", "own_package"])
def test_a_module_in_the_working_directory_is_found(here, package):
    (here / package).mkdir(exist_ok=True)
    name = write_module(here / package, "def double(x):\n    return 2 * x\n")
    assert load_function(f"{package}.{name}:double".lstrip("."))(4) == 8


def test_a_file_is_found_with_its_neighbors_and_imported_once(here):
    (here / "folder").mkdir()
    neighbor = write_module(here / "folder", "FACTOR = 3\n")
    name = write_module(
        here / "folder", f"from {neighbor} import FACTOR\nclass Times:\n    factor = FACTOR\n"
    )
    times = load_function(f"folder/{name}.py:Times")
    assert times.factor == 3
    assert load_function(f"{here}/folder/{name}.py:Times") is times


@pytest.mark.parametrize("spec", ["", "module", "module:", ":function"])
def test_a_name_without_its_two_parts_is_refused(spec):
    with pytest.raises(UserError, match=r"package\.module:function or file\.py:function"):
        load_function(spec)


@pytest.mark.parametrize(
    "spec", ["no_such_module:f", "no_such_package.inside:f", "json.nothing:f", "nothing.py:f"]
)
def test_a_module_or_file_that_is_not_there_is_named(here, spec):
    with pytest.raises(UserError, match=r"there is no (module|file) .*(no_such|nothing)"):
        load_function(spec)


def test_a_function_that_is_not_there_is_named_with_the_nearest(here):
    name = write_module(here, "def build_model():\n    pass\nempty = 1\n")
    with pytest.raises(UserError, match=r"no function 'build_modle'.*did you mean 'build_model'"):
        load_function(f"{name}:build_modle")
    with pytest.raises(UserError, match="there is no function 'empty'"):
        load_function(f"{name}:empty")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "import no_such_dependency\n",
            "ModuleNotFoundError: No module named 'no_such_dependency'",
        ),
        ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero .*:2"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_a_module_that_fails_is_told_from_one_that_is_missing(here, text, reason):
    name = write_module(here, text)
    for spec in (f"{name}:f", f"{name}.py:f"):
        with pytest.raises(UserError, match=f"importing it failed: {reason}") as caught:
            load_function(spec)
        assert "\n" not in str(caught.value)


def test_the_users_modules_do_not_hide_installed_ones(here):
    (here / "colorsys.py").write_text("raise SystemExit\n")
    sys.modules.pop("colorsys", None)
    assert load_function("colorsys:rgb_to_hsv")(0, 0, 0) == (0.0, 0.0, 0)
