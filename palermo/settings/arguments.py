"""The settings as arguments of a call, for type checkers and editors: the fields of Settings, and what each may be.

settings/settings.py says what each setting means, and settings/readers.py checks the values.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from palermo.core.times import Duration


class SettingArguments(TypedDict, total=False):
    """All settings but the URL; None for one that is not given.

    A duration is seconds, a timedelta, or text such as "5m"; "none" switches off what may be off.
    """

    exchange: str | None
    queue_type: Literal["classic", "quorum"] | None
    tenant_order: Literal["turn", "random"] | None
    default_queue: str | None
    serializer: str | None
    compression: str | None
    sign: bool | None
    signing_keys: list[str] | tuple[str, ...] | None
    publish_timeout: Duration | str | None
    imports: list[str] | tuple[str, ...] | None
    schedule: Mapping[str, Mapping[str, Any]] | None
    failed_per_queue: bool | None
    failed_max_age: Duration | str | None
    failed_max_count: int | Literal["none"] | None
    max_deaths: int | Literal["none"] | None
    journal: Literal["off", "failures", "all"] | None
    journal_arguments: int | None
    journal_max_size: int | None
    journal_max_age: Duration | str | None
    events_prefix: str | None
    events_unsubscribed: Literal["keep", "refuse"] | None
    events_max_age: Duration | str | None
    events_max_size: int | None
    max_result: int | None
    release: str | None
    metrics_host: str | None
    metrics_port: int | Literal["none"] | None
    metrics_token: str | None
    web_host: str | None
    web_port: int | None
    web_hosts: list[str] | tuple[str, ...] | None
    web_users: str | None
    web_oidc_issuer: str | None
    web_oidc_client_id: str | None
    web_oidc_client_secret: str | None
    web_oidc_scopes: list[str] | tuple[str, ...] | None
    web_oidc_claim: str | None
    web_oidc_roles: list[str] | tuple[str, ...] | None
    web_session: Duration | str | None
    web_token: bool | None
    web_read_only: bool | None
    web_prefix: str | None
    web_trust_proxy: bool | None
    web_redact: list[str] | tuple[str, ...] | None
    web_secret: str | None


class SettingArgumentsAndUrl(SettingArguments, total=False):
    """All settings; None for one that is not given."""

    url: str | None
