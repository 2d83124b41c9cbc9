"""What messages show: neither control characters of strangers nor secrets."""

import pytest

from paceline.errors import printable, public


def test_control_characters_of_names_are_shown_and_not_sent_to_the_terminal() -> None:
    assert printable("cat\x1b]0;title\x07 \x9b2J dög") == r"cat\x1b]0;title\x07 \x9b2J dög"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://AKIA1:abc/x@bucket/run", "s3://AKIA1:***@bucket/run"),
        ("s3://bucket/run@2", "s3://bucket/run@2"),
        ("https://a/b?X-Amz-Signature=0f3&part=1", "https://a/b?X-Amz-Signature=***&part=1"),
        ("https://a/b?sv=1&sig=%2Babc", "https://a/b?sv=1&sig=***"),
        ("--spark.conf spark.hadoop.fs.s3a.secret.key=abc/d", None),
        ("'spark.hadoop.fs.s3a.access.key=AKIA' twice", None),
        ("MLFLOW_TRACKING_PASSWORD=hunter2", None),
        ("images in data/key=1/part.png", "images in data/key=1/part.png"),
        ("cannot read /home/u@host:3/x", "cannot read /home/u@host:3/x"),
    ],
)
def test_secrets_in_messages_are_masked(given: str, shown: str | None) -> None:
    if shown:
        assert public(given) == shown
    else:
        assert "***" in public(given)
        assert not any(secret in public(given) for secret in ("abc/d", "AKIA", "hunter2"))
