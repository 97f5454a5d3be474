"""The sources of settings, which of them wins, and the error for a wrong setting."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest
from msgspec.structs import replace

from palermo.core.address import DEFAULT_URL
from palermo.core.fair_scheduling import TENANT_ORDERS
from palermo.core.journal_records import JournalLevel
from palermo.core.times import Duration
from palermo.core.topology import QUEUE_TYPES
from palermo.errors import SettingInvalid, UrlInvalid
from palermo.settings import settings as program_settings
from palermo.settings.environment import unknown_variables
from palermo.settings.settings import Settings, environment, setting_origins
from palermo.settings.table import SETTINGS, SettingArguments, SettingArgumentsAndUrl


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PALERMO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_each_source_wins_over_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_settings, "_declared", {})
    settings = ("exchange", "default_queue", "serializer", "compression", "queue_type")
    (tmp_path / "palermo.toml").write_text("".join(f'{name} = "file"\n' for name in settings[:4]))
    program_settings.declare_settings("settings.PALERMO", {"queue_type": "classic", "web_prefix": "/old"})
    program_settings.declare_settings("settings.PALERMO", dict.fromkeys(settings[1:4], "program"))
    monkeypatch.setenv("PALERMO_SERIALIZER", "variable")
    monkeypatch.setenv("PALERMO_COMPRESSION", "variable")

    loaded = Settings.load(compression="given", url=None)

    assert [getattr(loaded, name) for name in settings[:4]] == ["file", "program", "variable", "given"]
    assert (loaded.url, loaded.web_prefix) == (DEFAULT_URL, Settings().web_prefix), "a later declaration replaces all"
    assert {each.setting: each.origin for each in setting_origins()}["default_queue"] == "settings.PALERMO"
    program_settings.declare_settings("settings.PALERMO", {"default_queu": "x"})
    with pytest.raises(SettingInvalid, match=r"setting 'default_queu' in settings.PALERMO is unknown"):
        Settings.load()


def test_the_nearest_file_going_up_is_the_only_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "shop" / "src" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "palermo.toml").write_text('exchange = "top"\ndefault_queue = "top"\n')
    (tmp_path / "shop" / "pyproject.toml").write_text('[tool.palermo]\nexchange = "shop"\n')
    (tmp_path / "shop" / "src" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    (deep / "pyproject.toml").write_text("[tool.other\n")  # the broken one of another program
    monkeypatch.chdir(deep)

    assert (Settings.load().exchange, Settings.load().default_queue) == ("shop", "jobs")

    (tmp_path / "shop" / "palermo.toml").write_text('exchange = "own"\n')
    assert Settings.load().exchange == "own"


def test_a_relative_sqlite_path_counts_from_its_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "50% off?"
    (home / "deep").mkdir(parents=True)
    (home / "palermo.toml").write_text('url = "sqlite:///jobs.db"\n')
    monkeypatch.chdir(home / "deep")

    assert Settings.load().address.path == str(home / "jobs.db")
    assert Settings.load(url="sqlite:///jobs.db").address.path == "jobs.db"


def test_blank_variables_and_those_of_kubernetes_services_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in ("PALERMO", "PALERMO_WEB", "PALERMO_METRICS"):
        monkeypatch.setenv(f"{service}_PORT", "tcp://10.96.0.7:80")
        for name, value in (
            ("PORT_80_TCP_ADDR", "10.96.0.7"),
            ("SERVICE_HOST", "10.96.0.7"),
            ("SERVICE_PORT_HTTP", "80"),
        ):
            monkeypatch.setenv(f"{service}_{name}", value)

    for blank in ("", " \n"):
        monkeypatch.setenv("PALERMO_URL", blank)
        assert Settings.load() == Settings()
    assert unknown_variables() == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("publish_timeout", "soon", "setting publish_timeout is 'soon'; it must be a duration above 0"),
        ("publish_timeout", 0, "publish_timeout is 0; it"),
        ("publish_timeout", float("nan"), "publish_timeout is nan; it"),
        ("publish_timeout", True, "publish_timeout is True; it"),
        ("failed_max_count", -1, "failed_max_count is -1; it must be a whole number"),
        ("failed_max_count", 1.5, "failed_max_count is 1.5; it"),
        ("max_deaths", 0, "max_deaths is 0; it must be a whole number, 1 or more, or none"),
        ("failed_max_age", "1x", "failed_max_age is '1x'; it"),
        ("sign", "maybe", "sign is 'maybe'; it must be true or false"),
        ("imports", 3, "imports is 3; it must be a list of strings"),
        ("serializer", "", "serializer is ''; it must be a name"),
        ("exchange", "a.b", "setting exchange: exchange name 'a.b' contains a dot"),
        ("default_queue", "failed", "setting default_queue: queue 'failed' is for failed jobs"),
        ("signing_keys", ["secret", 3], "signing_keys is a value that is not shown; it must be a list of strings"),
        ("url", 3, "url is a value that is not shown; it must be text"),
    ],
)
def test_a_wrong_value_is_named_with_its_setting(name: str, value: Any, text: str) -> None:
    with pytest.raises(SettingInvalid, match=text) as raised:
        Settings.load(**{name: value})
    with pytest.raises(SettingInvalid, match=text):
        Settings(**{name: value})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("palermo.toml", b"sign = 3", r"setting sign is 3 \(from .*/palermo\.toml\); it must be true or false"),
        ("palermo.toml", b"exchange = \xff", r"settings file .*/palermo\.toml is not valid TOML"),
        (
            "palermo.toml",
            b'[tool.palermo]\nurl = "x"',
            r"palermo.toml has a \[tool\] table\. Move the settings in it to the top level",
        ),
        ("pyproject.toml", b"[tool]\npalermo = 3", r"tool\.palermo in .* is not a table"),
        ("pyproject.toml", b"tool.palermo = 3", r"tool\.palermo in .* is not a table"),
        (
            "pyproject.toml",
            b'[tool.palermo]\nexchnage = "x"',
            r"setting 'exchnage' in .*/pyproject\.toml is unknown\. Did you mean 'exchange'\?",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(file: str, content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)

    with pytest.raises(SettingInvalid, match=text):
        Settings.load()


def test_a_wrong_variable_is_named_without_a_password_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALERMO_WEB_PORT", "http")
    with pytest.raises(SettingInvalid, match=r"setting web_port is 'http' \(from PALERMO_WEB_PORT\)"):
        Settings.load()

    monkeypatch.setenv("PALERMO_URL", "amqp://me:secret@host:99999/")
    with pytest.raises(UrlInvalid, match=r"^the port in the broker URL .* It was read from PALERMO_URL\.") as raised:
        Settings.load()
    # The port may be a password, of a URL whose @ was forgotten.
    assert not re.search("secret|99999", str(raised.value))


#: The type of an argument, by the type of the setting; a choice is Literal in the argument.
ARGUMENT_TYPES: dict[Any, Any] = {
    str: str | None,
    bool: bool | None,
    int: int | None,
    float: Duration | str | None,
    tuple[str, ...]: list[str] | tuple[str, ...] | None,
    float | None: Duration | str | None,
    int | None: int | Literal["none"] | None,
    Mapping[str, Mapping[str, Any]]: Mapping[str, Mapping[str, Any]] | None,
}

CHOICES = {
    "queue_type": set(QUEUE_TYPES),
    "tenant_order": set(TENANT_ORDERS),
    "journal": {level.value for level in JournalLevel},
    "events_unsubscribed": {"keep", "refuse"},
}


def test_the_arguments_that_type_checkers_know_are_the_settings() -> None:
    settings, arguments = get_type_hints(Settings), get_type_hints(SettingArgumentsAndUrl)

    assert list(SETTINGS) == list(settings)
    assert set(arguments) == set(settings)
    assert set(get_type_hints(SettingArguments)) == set(settings) - {"url"}
    for name, argument in arguments.items():
        if name in CHOICES:
            choices, none = get_args(argument)
            assert (set(get_args(choices)), none) == (CHOICES[name], type(None)), name
        else:
            assert argument == ARGUMENT_TYPES[settings[name]], name


def test_what_may_be_off_is_switched_off_by_none_as_text() -> None:
    for name in (name for name, of in get_type_hints(SettingArgumentsAndUrl).items() if "none" in str(of)):
        assert getattr(Settings.load(**{name: "none"}), name) is None  # type: ignore[arg-type]
    with pytest.raises(SettingInvalid, match="signing_keys has no key"):
        Settings(sign=True)


def test_its_text_shows_no_password_and_no_key() -> None:
    settings = Settings(
        url="amqp://me:hunter22@host/?password=eighteen",
        signing_keys=("0123456789abcdef-key",),
        web_secret="sixteen letters or more",
        metrics_token="seventeen letters or so",
    )

    for shown in (repr(settings), str(settings), f"{replace(settings, exchange='shop')}", repr(settings.address)):
        assert not re.search("hunter22|sixteen|seventeen|eighteen|0123456789abcdef", shown), shown
    assert "amqp://me:***@host:5672/" in repr(settings)
    assert "amqp://me:***@host:5672/" in str(settings.address)


def test_a_child_reads_the_same_settings_from_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        url="sqlite:///x.db",
        exchange="shop",
        signing_keys=("0123456789abcdef,key", "another-key-of-16"),
        sign=True,
        publish_timeout=2.5,
        imports=("a", "b"),
        schedule={"x": {"job": "shop.note", "cron": "0 3 * * *", "kwargs": {"a": [1]}}},
    )
    (tmp_path / "palermo.toml").write_text('compression = "gzip"\nfailed_max_age = "1d"\n')
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)

    assert Settings.load() == settings
    assert hash(Settings.load()) == hash(settings)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("publish_timeout", "1m30s", 90.0),
        ("publish_timeout", "2.5", 2.5),
        ("sign", "no", False),
        ("imports", "shop.tasks, shop.mail,", ("shop.tasks", "shop.mail")),
        ("signing_keys", '["a,b", "c"]', ("a,b", "c")),
        ("failed_max_age", "none", None),
        ("compression", "none", ""),
        # White space around a value is no part of it.
        ("url", "sqlite:////srv/jobs.db\n", "sqlite:////srv/jobs.db"),
        ("exchange", "shop\r\n", "shop"),
        ("queue_type", " classic ", "classic"),
        ("journal", "all\n", "all"),
        ("web_secret", "0123456789abcdef\n", "0123456789abcdef"),
        ("web_users", "none\n", ""),
        ("max_deaths", "none\n", None),
    ],
)
def test_text_is_read_as_the_setting_is_wherever_it_comes_from(
    name: str, text: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [getattr(Settings.load(**{name: text}), name)]  # type: ignore[arg-type]
    monkeypatch.setenv(f"PALERMO_{name.upper()}", text)
    found.append(getattr(Settings.load(), name))
    monkeypatch.delenv(f"PALERMO_{name.upper()}")
    (tmp_path / "palermo.toml").write_text(f"{name} = {json.dumps(text)}\n")
    found.append(getattr(Settings.load(), name))

    assert found == [value] * 3
