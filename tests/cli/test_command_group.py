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
    assert told.stderr.count("the broker is amqp://guest:***@rabbit:5672/") == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--url", "sqlite:///other.db", "--host", "rabbit"), "--url names the whole broker"),
        (("--password-file", "nowhere"), "the password file nowhere cannot be read: No such file"),
        (("--password-file", "empty"), "the password file empty is empty"),
        (("--password-file", "latin"), "it is not UTF-8 text"),
        (("--host", "rabbit:port"), "the port in the broker URL is not a number"),
        (("--port", "0"), "--port"),
    ],
)
def test_unusable_parts_are_one_line(palermo: Palermo, tmp_path: Path, flags: tuple[str, ...], told: str) -> None:
    (tmp_path / "file").write_text("secret\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"s\xe9cret\n")

    (line,) = palermo("queues", *flags, code=2).stderr.splitlines()

    assert told in line
    assert "secret" not in line


def test_the_help_of_a_command_leads_to_the_options_of_all_commands(palermo: Palermo) -> None:
    of_all, own = palermo("--help").stdout, palermo("failed", "list", "--help").stdout

    for command in ("web", "demo"):  # which have a --host and a --port of their own
        shown = palermo(command, "--help").stdout
        assert all(flag in shown for flag in ("--broker-host", "--broker-port", "--user", "--vhost", "--password-file"))
        assert palermo(command, "--url", "sqlite:///x.db", "--broker-host", "rabbit", code=2).stderr.count("\n") == 1

    flags = ("--host", "--port", "--user", "--vhost", "--password-file", "--exchange", "--debug")
    assert all(flag in of_all for flag in flags)
    assert not any(flag in own for flag in flags)
    assert "--url URL" in own
    assert "`palermo --help`" in " ".join(own.split())


def test_flags_may_stand_before_the_command(palermo: Palermo) -> None:
    assert "UrlInvalid" in palermo("--url", "nonsense", "queues", code=2).stderr
    assert palermo("--url", "nonsense", "enqueue", "shop.send", "--url", "sqlite:///other.db").exit_code == 0
