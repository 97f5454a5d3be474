import signal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from palermo import errors
from palermo.cli import main
from palermo.cli.command_group import exit_code
from palermo.inspector.queues import Queues
from tests.cli.conftest import Palermo


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ((errors.UsageError, errors.SettingInvalid, errors.UrlInvalid, errors.JobNameTaken, click.UsageError), 2),
        ((errors.QueueNameInvalid, errors.IdInvalid, errors.OptionInvalid, errors.ArgumentsInvalid), 2),
        ((errors.BrokerUnavailable, errors.BrokerRefused, errors.StoreInvalid), 3),
        ((errors.NotFound,), 4),
        ((errors.PublishRefused, errors.NotBrowsable, errors.EncodeError, errors.BodyTooLarge, RuntimeError), 1),
    ],
)
def test_every_error_has_its_exit_code(kinds: tuple[type[Exception], ...], code: int) -> None:
    assert {exit_code(kind("x")) for kind in kinds} == {code}


def test_a_program_that_calls_the_command_line_keeps_its_signals(palermo: Palermo) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    palermo("worker", "--help")

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_an_unexpected_error_is_one_line_unless_debug_asks(palermo: Palermo, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: object) -> None:
        raise RuntimeError("boom at amqp://me:secret@host\nand more")

    monkeypatch.setattr("palermo.inspector.queues.Queues.list", explode)

    (line,) = palermo("queues", code=1).stderr.splitlines()
    assert "RuntimeError: boom at amqp://me:***@host and more" in line
    assert "--debug" in line

    shown = CliRunner().invoke(main, ["queues", "--debug"])
    assert shown.exit_code == 1
    assert "Traceback (most recent call last)" in shown.stderr
    assert "secret" not in shown.stderr


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of the brokers that `palermo queues` asks; none is asked."""
    urls: list[str] = []

    def queues(queues: Queues) -> list[object]:
        urls.append(queues._client.settings.url)
        return []

    monkeypatch.setattr(Queues, "list", queues)
    return urls


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        (("--host", "rabbit"), "amqp://me:s%40cret@rabbit:5672/shop"),
        (("--host", "::1", "--port", "5673"), "amqp://me:s%40cret@[::1]:5673/shop"),
        (("--host", "h1,h2:5673"), "amqp://me:s%40cret@h1:5672,h2:5673/shop"),
        (("--port", "5674"), "amqp://me:s%40cret@first:5674,second:5674/shop"),
        (("--vhost", "a/b"), "amqp://me:s%40cret@first:5672,second:5673/a%2Fb"),
        (("--vhost", "/"), "amqp://me:s%40cret@first:5672,second:5673/"),
        (("--user", "guest"), "amqp://guest:guest@first:5672,second:5673/shop"),
        (("--user", "ann", "--password-file", "file"), "amqp://ann:p%3A%2F%40@first:5672,second:5673/shop"),
    ],
)
def test_the_parts_of_a_url_are_flags_of_their_own(
    palermo: Palermo, used: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], url: str
) -> None:
    monkeypatch.setenv("PALERMO_URL", "amqp://me:s%40cret@first:5672,second:5673/shop?heartbeat=30")
    (tmp_path / "file").write_text("p:/@\nanother line\n")

    palermo("queues", *flags)
    palermo(*flags, "queues")

    assert used == [f"{url}?heartbeat=30"] * 2


def test_without_rabbitmq_in_the_settings_the_parts_have_defaults(palermo: Palermo, used: list[str]) -> None:
    told = palermo("queues", "--host", "rabbit")

    assert used == ["amqp://guest:guest@rabbit:5672/"]
    assert told.stderr.count("using the broker amqp://guest:***@rabbit:5672/") == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--password-file", "empty"), "the password file empty is empty"),
        (("--password-file", "latin"), "it is not UTF-8 text"),
    ],
)
def test_unusable_parts_are_one_line(palermo: Palermo, tmp_path: Path, flags: tuple[str, ...], told: str) -> None:
    (tmp_path / "file").write_text("secret\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"s\xe9cret\n")

    (line,) = palermo("queues", *flags, code=2).stderr.splitlines()

    assert told in line
    assert "secret" not in line
