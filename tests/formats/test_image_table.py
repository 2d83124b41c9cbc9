"""Tables with the path and the label of each image."""

import shutil

import pytest

from image_folders import build, content_of, draw, write_images
from paceline.errors import UserError
from paceline.formats.check import check
from paceline.formats.detect import detect
from paceline.formats.image_list import find_images

LABELS = ("cat", "dog", "cat", "bird", "dog", "bird")


def write_flat(folder, place="images", count=6):
    (folder / place).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / place / f"img_{number}.jpg").write_bytes(draw(number))
    return folder


def table(folder, name, header, row, count=6):
    lines = [header, *(row.format(k=k, label=LABELS[k]) for k in range(count))]
    (folder / name).write_text("\n".join(line for line in lines if line) + "\n")


@pytest.mark.parametrize(
    ("place", "name", "header", "row"),
    [
        ("images", "labels.csv", "id,breed", "img_{k},{label}"),
        ("images", "labels.csv", "", "images/img_{k}.jpg,{label}"),
        ("images", "data.tsv", "label\tage\timage", "{label}\t{k}\timg_{k}.jpg"),
        ("images", "train.csv", ";file;class", "{k};./images\\img_{k}.jpg;{label}"),
        ("", "metadata.csv", "file_name,label,text", 'img_{k}.jpg,{label},"a, b"'),
        ("train", "train.csv", "image_id,label", "img_{k},{label}"),
        ("a/b/part_1", "index.csv", "path,label", "b/part_1/img_{k}.jpg,{label}"),
    ],
)
def test_a_table_beside_the_images_gives_their_labels(tmp_path, place, name, header, row):
    folder = write_flat(tmp_path, place)
    table(folder, name, header, row)
    found = find_images(folder, 0.4)
    assert detect(folder) == "pictures"
    assert (found.classes, found.problems, found.faults) == (("bird", "cat", "dog"), [], [])
    images = sorted(image for images in found.splits.values() for image in images)
    assert [found.classes[label] for _, label in images] == list(LABELS)
    source = build("auto", folder, split=0.4)
    assert source.train.size + source.test.size == 6


def test_a_table_may_name_the_splits_in_a_column_or_by_its_file(tmp_path):
    folder = write_flat(tmp_path / "column")
    splits = ("train", "train", "val", "test", "train", "Validation")
    rows = "".join(f"img_{k},{LABELS[k]},{splits[k]}\n" for k in range(6))
    (folder / "labels.csv").write_text("id,label,split\n" + rows)
    by_column = build("auto", folder)
    assert [s.size for s in (by_column.train, by_column.test, by_column.validation)] == [3, 1, 2]

    folder = tmp_path / "files"
    for split, count in (("train", 6), ("test", 4)):
        write_flat(folder, split, count)
        table(folder / split, "metadata.csv", "file_name,label", "img_{k}.jpg,{label}", count)
    source = build("auto", folder)
    assert (source.train.size, source.test.size) == (6, 4)
    assert content_of(source.test)[0][0] in {draw(number) for number in range(4)}


def test_test_images_of_a_competition_without_labels_are_not_used(tmp_path):
    folder = write_flat(write_flat(tmp_path, "train"), "test", 3)
    table(folder, "train.csv", "id,label", "train/img_{k}.jpg,{label}")
    table(folder, "test.csv", "id", "test/img_{k}.jpg", 3)
    table(folder, "sample_submission.csv", "id,label", "test/img_{k}.jpg,cat", 3)
    with pytest.raises(UserError, match=r"no test split .* pass --data\.split"):
        build("auto", folder)
    assert build("auto", folder, split=0.4).classes == ("bird", "cat", "dog")


def test_folders_of_classes_with_a_test_split_need_no_table(tmp_path):
    folder = write_images(tmp_path / "data")
    (folder / "labels.csv").write_text("file,label\ntrain/ant/ant-train-0.jpg,bee\n")
    assert build("auto", folder).train.size == 18


def test_rows_that_cannot_be_used_are_named_and_can_be_left_out(tmp_path):
    folder = write_flat(tmp_path)
    table(folder, "labels.csv", "id,label", "img_{k},{label}")
    with (folder / "labels.csv").open("a") as file:
        file.write("img_9,cat\nimg_1,dog\nimg_2\n")
    with pytest.raises(UserError, match=r"row 8 \(img_9,cat\): there is no .*2 more.*skip-bad"):
        build("auto", folder, split=0.4)
    report = check(folder, 0.4, processes=1)
    assert [line.split(", row ")[1].split(" ")[0] for line in report.problems] == ["10", "8", "9"]
    source = build("auto", folder, split=0.4, skip_bad=True)
    assert source.train.size + source.test.size == 6
    assert len(source.left_out) == 3


def test_a_table_whose_labels_are_not_clear_is_an_error_that_lists_its_columns(tmp_path):
    folder = write_flat(tmp_path)
    table(folder, "labels.csv", "id,age,sex", "img_{k},4{k},m")
    with pytest.raises(UserError, match=r"labels\.csv has age, sex .* 'label'"):
        build("auto", folder, split=0.4)
    table(folder, "labels.csv", "id,label", "img_{k},cat")
    with pytest.raises(UserError, match=r"has the labels \['cat'\]; there must be two"):
        build("auto", folder, split=0.4)
    shutil.copy(folder / "labels.csv", folder / "more.csv")
    with pytest.raises(UserError, match=r"labels\.csv and .*more\.csv both list images"):
        build("auto", folder, split=0.4)
