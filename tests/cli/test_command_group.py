import signal
from pathlib import Path

import click
import pytest

from palermo import errors
from palermo.cli import main
from palermo.cli.command_group import exit_code
from palermo.cli.options import parse_duration, parse_instant
from palermo.core.address import masked
from palermo.inspector.inspector import Inspector
from tests.cli.conftest import Palermo


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.SettingInvalid("x"), 2),
        (errors.UrlInvalid("x"), 2),
        (errors.QueueNameInvalid("x"), 2),
        (errors.IdInvalid("x"), 2),
        (errors.OptionInvalid("x"), 2),
        (errors.ArgumentsInvalid("x"), 2),
        (errors.JobNameTaken("x"), 2),
        (errors.BrokerUnavailable("x"), 3),
        (errors.BrokerRefused("x"), 3),
        (errors.StoreInvalid("x"), 3),
        (errors.NotFound("x"), 4),
        (errors.PublishRefused("x"), 1),
        (errors.NotBrowsable("x"), 1),
        (errors.EncodeError("x"), 1),
        (errors.BodyTooLarge("x"), 1),
        (RuntimeError("x"), 1),
        (click.UsageError("x"), 2),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_a_program_that_calls_the_command_line_keeps_its_signals(palermo: Palermo) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    palermo("worker", "--help")

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("arguments", [["worker"], ["jobs"], ["enqueue"], ["queues", "more"], ["queues", "--frob"]])
def test_wrong_usage_is_one_line(palermo: Palermo, arguments: list[str]) -> None:
    assert len(palermo(*arguments, code=2).stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "0"],
        ["-c", "-1"],
        ["-c", "many"],
        ["-q", ""],
        ["-q", "a,,b"],
        ["-q", "failed"],
        ["-q", "failed", "-q", "mail"],
        ["-q", "amq.x"],
        ["--shutdown-timeout", "soon"],
    ],
)
def test_wrong_usage_of_a_worker_is_one_line(palermo: Palermo, arguments: list[str]) -> None:
    assert len(palermo("worker", "shop.tasks", *arguments, code=2).stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5_400), ("2d", 172_800), ("1.5", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-5", "1m1h", "five"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a duration"):
        parse_duration(text)


def test_an_instant_needs_a_zone() -> None:
    assert parse_instant("2026-12-01T09:00Z") == 1_796_115_600
    assert parse_instant("2026-12-01T10:00+01:00") == 1_796_115_600
    with pytest.raises(click.UsageError, match="no time zone"):
        parse_instant("2026-12-01T09:00")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at amqp://me:secret@host/ now", "at amqp://me:***@host/ now"),
        ("amqp://:secret@host", "amqp://:***@host"),
        ("amqps://me:sec@ret@h1,h2/v", "amqps://me:***@h1,h2/v"),
        ("amqp://host:5672/", "amqp://host:5672/"),
        ("sqlite:///a:b.db", "sqlite:///a:b.db"),
        ("amqp://me:sec?ret@host/v", "amqp://me:***@host/v"),
        ("amqp://me:sec/ret@host/v", "amqp://me:***@host/v"),
        ("amqp://m/e:secret@host", "amqp://m/e:***@host"),
        ("amqp://me:secret", "amqp://me:***"),
        ("'amqp://host:5672', amqp://[::1]:5672/v", "'amqp://host:5672', amqp://[::1]:5672/v"),
    ],
)
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_an_unexpected_error_is_one_line_unless_debug_asks(palermo: Palermo, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: object) -> None:
        raise RuntimeError("boom at amqp://me:secret@host\nand more")

    monkeypatch.setattr("palermo.inspector.inspector.Inspector.queues", explode)

    (line,) = palermo("queues", code=1).stderr.splitlines()
    assert line == (
        "palermo: RuntimeError: boom at amqp://me:***@host and more (unexpected; --debug shows the traceback)"
    )

    from click.testing import CliRunner

    shown = CliRunner().invoke(main, ["queues", "--debug"])
    assert shown.exit_code == 1
    assert "Traceback (most recent call last)" in shown.stderr
    assert "secret" not in shown.stderr


def urls_used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of the brokers that `palermo queues` asks from now on; none is asked."""
    used: list[str] = []

    def queues(inspector: Inspector) -> list[object]:
        used.append(inspector._client.settings.url)
        return []

    monkeypatch.setattr(Inspector, "queues", queues)
    return used


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
    palermo: Palermo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], url: str
) -> None:
    monkeypatch.setenv("PALERMO_URL", "amqp://me:s%40cret@first:5672,second:5673/shop?heartbeat=30")
    (tmp_path / "file").write_text("p:/@\nanother line\n")
    used = urls_used(monkeypatch)

    palermo("queues", *flags)
    palermo(*flags, "queues")

    assert used == [f"{url}?heartbeat=30"] * 2


def test_without_rabbitmq_in_the_settings_the_parts_have_defaults(
    palermo: Palermo, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = urls_used(monkeypatch)

    told = palermo("queues", "--host", "rabbit")

    assert used == ["amqp://guest:guest@rabbit:5672/"]
    assert "the broker is amqp://guest:***@rabbit:5672/, as these flags say, and not sqlite:///" in told.stderr
    assert told.stderr.count("the broker is") == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--url", "sqlite:///other.db", "--host", "rabbit"), "--url names the whole broker"),
        (("--url", "sqlite:///other.db", "--password-file", "file"), "--url names the whole broker"),
        (("--password-file", "nowhere"), "the password file nowhere cannot be read: No such file"),
        (("--password-file", "empty"), "the password file empty is empty"),
        (("--password-file", "latin"), "it is no text in UTF-8"),
        (("--host", "rabbit:port"), "the port in the broker URL is not a number"),
        (("--port", "0"), "--port"),
    ],
)
def test_parts_that_cannot_be_used_are_one_line(
    palermo: Palermo, tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    (tmp_path / "file").write_text("secret\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"s\xe9cret\n")

    (line,) = palermo("queues", *flags, code=2).stderr.splitlines()

    assert told in line
    assert "secret" not in line


@pytest.mark.parametrize("command", ["web", "demo"])
def test_commands_that_listen_have_broker_host_and_broker_port(palermo: Palermo, command: str) -> None:
    shown = palermo(command, "--help").stdout

    assert all(flag in shown for flag in ("--broker-host", "--broker-port", "--user", "--vhost", "--password-file"))
    assert palermo(command, "--url", "sqlite:///x.db", "--broker-host", "rabbit", code=2).stderr.count("\n") == 1


def test_the_help_of_a_command_leads_to_the_options_of_all_commands(palermo: Palermo) -> None:
    of_all, own = palermo("--help").stdout, palermo("failed", "list", "--help").stdout

    flags = ("--host", "--port", "--user", "--vhost", "--password-file", "--exchange", "--debug")
    assert all(flag in of_all for flag in flags)
    assert not any(flag in own for flag in flags)
    assert "--url URL" in own
    assert "`palermo --help`" in " ".join(own.split())


def test_flags_may_stand_before_the_command(palermo: Palermo) -> None:
    assert "UrlInvalid" in palermo("--url", "nonsense", "queues", code=2).stderr
    assert palermo("--url", "nonsense", "enqueue", "shop.send", "--url", "sqlite:///other.db").exit_code == 0
