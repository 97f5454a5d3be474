"""The table of settings, with the argument type, reader, meaning and default of each.

Law: a new setting needs a row and a default here, and the code that uses it. Variables, settings files, errors and
docs/reference/settings.md are based on this table.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Struct, field

from palermo.contract.events import EVENTS_AGE, EVENTS_BYTES
from palermo.core.address import DEFAULT_URL
from palermo.core.fair_scheduling import TENANT_ORDERS
from palermo.core.journal_records import JOURNAL_AGE, JOURNAL_BYTES, JournalLevel
from palermo.core.lifecycle import MAX_RESULT
from palermo.core.times import Duration
from palermo.core.topology import DEFAULT_EXCHANGE, DEFAULT_QUEUE, QUEUE_TYPES, check_exchange_name, check_new_queue
from palermo.settings.readers import (
    one_of,
    optional,
    read_count,
    read_events_prefix,
    read_list,
    read_name,
    read_path,
    read_port,
    read_positive,
    read_prefix,
    read_schedule,
    read_seconds,
    read_secret,
    read_truth,
    read_url,
    read_web_address,
    size,
)


class Setting(Struct, frozen=True):
    #: Checks and converts a value from TOML, from a variable's text, or from Python.
    read: Callable[[Any], Any]
    #: Its meaning in a sentence or two, for the reference.
    help: str
    #: Whether its value is a secret that must never be shown.
    secret: bool = False
    #: Whether errors must not repeat its value, because it may contain a secret.
    hidden: bool = False


class SettingArguments(TypedDict, total=False):
    """All settings except the URL, as arguments of a call. None means not given.

    A duration is a number of seconds, a timedelta, or text such as "5m". "none" turns a setting off where that is
    possible.
    """

    exchange: Annotated[
        str | None,
        Setting(
            check_exchange_name, "Name of the exchange, which separates several systems on one broker; without dots."
        ),
    ]
    queue_type: Annotated[
        Literal["classic", "quorum"] | None,
        Setting(
            one_of(QUEUE_TYPES),
            "Type of the queues that Palermo creates on RabbitMQ: classic, on one node, or quorum, on a majority of "
            "the nodes (docs/guides/clusters.md).",
        ),
    ]
    tenant_order: Annotated[
        Literal["turn", "random"] | None,
        Setting(
            one_of(TENANT_ORDERS),
            "How workers serve the tenants of a queue, by their shares: in turn, or at random "
            "(docs/guides/tenants.md).",
        ),
    ]
    default_queue: Annotated[str | None, Setting(check_new_queue, "Queue for jobs that don't set one.")]
    serializer: Annotated[
        str | None, Setting(read_name, "Serializer of arguments: json, msgpack, pickle, or one of your own.")
    ]
    compression: Annotated[str | None, Setting(read_path, "Compression of arguments: gzip, zstd, or none.")]
    sign: Annotated[bool | None, Setting(read_truth, "Sign jobs with the first key of signing_keys.")]
    signing_keys: Annotated[
        list[str] | tuple[str, ...] | None,
        Setting(
            read_list, "Keys of at least 16 bytes. Each of them verifies signatures; the first one signs.", secret=True
        ),
    ]
    publish_timeout: Annotated[
        Duration | str | None, Setting(read_seconds, "Maximum time to enqueue a job, including reconnects and retries.")
    ]
    imports: Annotated[
        list[str] | tuple[str, ...] | None,
        Setting(
            read_list,
            "Modules with jobs, for workers and commands started without modules; patterns such as `shop.*` are"
            " allowed. If set in a file, the file's folder is importable.",
        ),
    ]
    schedule: Annotated[
        Mapping[str, Mapping[str, Any]] | None,
        Setting(
            read_schedule,
            "Recurring jobs by name: tables in a file, or a JSON object in the variable (docs/learn/recurring.md).",
        ),
    ]
    failed_per_queue: Annotated[
        bool | None,
        Setting(
            read_truth,
            "Keep the failed jobs of each queue in a separate queue, `failed:QUEUE`. Every command still shows all "
            "of them.",
        ),
    ]
    failed_max_age: Annotated[
        Duration | str | None,
        Setting(optional(read_seconds), "Time after which a failed job is deleted; none keeps it."),
    ]
    failed_max_count: Annotated[
        int | Literal["none"] | None,
        Setting(
            optional(read_count),
            "Maximum number of failed jobs, per queue if failed_per_queue is on. Workers delete the oldest, at most "
            "once a minute; none keeps all.",
        ),
    ]
    max_deaths: Annotated[
        int | Literal["none"] | None,
        Setting(
            optional(read_positive),
            "Number of workers that can die while running a job before it fails as WorkerDied; none sets no limit"
            " (docs/guides/long-jobs.md).",
        ),
    ]
    journal: Annotated[
        Literal["off", "failures", "all"] | None,
        Setting(
            one_of([level.value for level in JournalLevel]),
            "Level of the journal: off records nothing; failures records failures, the actions of operators and "
            "counts; all records every job (docs/guides/history.md).",
        ),
    ]
    journal_arguments: Annotated[
        int | None,
        Setting(
            size(0, 65_536),
            "Maximum size of a job's arguments in the journal, in bytes. Longer arguments are recorded as a preview; 0 "
            "records none.",
        ),
    ]
    journal_max_size: Annotated[
        int | None,
        Setting(
            size(1_000_000, 2**62),
            "Maximum size of the journal on the broker, in bytes. On RabbitMQ it is set when the journal is created.",
        ),
    ]
    journal_max_age: Annotated[
        Duration | str | None,
        Setting(
            read_seconds, "Maximum age of records in the journal. On RabbitMQ it is set when the journal is created."
        ),
    ]
    events_prefix: Annotated[
        str | None,
        Setting(
            read_events_prefix,
            "Prefix of the names of exchanges and queues for events, as in `PREFIX_gateway`; by default the name of"
            " the exchange (docs/guides/events.md).",
        ),
    ]
    events_unsubscribed: Annotated[
        Literal["keep", "refuse"] | None,
        Setting(
            one_of(("keep", "refuse")),
            "What to do with an event that no group subscribes to: keep it, or refuse to publish it.",
        ),
    ]
    events_max_age: Annotated[
        Duration | str | None,
        Setting(
            read_seconds,
            "Time that events are kept. On RabbitMQ it is set when the first event is published or subscribed to.",
        ),
    ]
    events_max_size: Annotated[
        int | None,
        Setting(
            size(1_000_000, 2**62),
            "Maximum size of the kept events on the broker, in bytes. On RabbitMQ it is set with events_max_age.",
        ),
    ]
    max_result: Annotated[
        int | None, Setting(size(0, MAX_RESULT), "Maximum size of a result that is kept, in bytes, up to 524288.")
    ]
    release: Annotated[
        str | None, Setting(read_path, "Deployed version or commit, which workers report for the statistics.")
    ]
    metrics_host: Annotated[
        str | None,
        Setting(read_name, "Address on which a worker serves metrics (docs/guides/monitoring.md)."),
    ]
    metrics_port: Annotated[
        int | Literal["none"] | None,
        Setting(
            optional(read_port),
            "Port for a worker's metrics, different for each worker on a machine; 0 picks a free port, none serves no"
            " metrics.",
        ),
    ]
    metrics_token: Annotated[
        str | None,
        Setting(
            read_secret,
            "Token of at least 16 characters that scrapers must send to workers and to the web pages.",
            secret=True,
        ),
    ]
    web_host: Annotated[
        str | None,
        Setting(
            read_name,
            "Address on which `palermo web` listens. Any address except loopback requires web_users or "
            "web_oidc_issuer.",
        ),
    ]
    web_port: Annotated[int | None, Setting(read_port, "Port of `palermo web`; 0 picks a free port.")]
    web_hosts: Annotated[
        list[str] | tuple[str, ...] | None,
        Setting(
            read_list,
            "Host names of the web pages, in addition to loopback; patterns such as `*.example.com` are allowed.",
        ),
    ]
    web_users: Annotated[
        str | None, Setting(read_path, "File of users with the hashes of their passwords (docs/guides/web.md).")
    ]
    web_oidc_issuer: Annotated[
        str | None,
        Setting(
            read_web_address,
            "Address of the OpenID provider that signs users in, without `/.well-known/openid-configuration`.",
        ),
    ]
    web_oidc_client_id: Annotated[str | None, Setting(read_path, "Client id of the web pages at the provider.")]
    web_oidc_client_secret: Annotated[
        str | None,
        Setting(read_path, "Client secret of the web pages at the provider; none for a public client.", secret=True),
    ]
    web_oidc_scopes: Annotated[
        list[str] | tuple[str, ...] | None, Setting(read_list, "Scopes to request from the provider.")
    ]
    web_oidc_claim: Annotated[str | None, Setting(read_name, "Claim that decides a user's role.")]
    web_oidc_roles: Annotated[
        list[str] | tuple[str, ...] | None,
        Setting(
            read_list,
            "Role for each value of that claim, such as `ops=admin,*=viewer`; `*` matches every user of the provider, "
            "and the highest role counts.",
        ),
    ]
    web_session: Annotated[
        Duration | str | None, Setting(read_seconds, "Time after which a browser must sign in again.")
    ]
    web_token: Annotated[
        bool | None,
        Setting(
            read_truth,
            "Whether `palermo web` requires a token if it has no users. A new token is created at each start.",
            hidden=True,
        ),
    ]
    web_read_only: Annotated[bool | None, Setting(read_truth, "Refuse all changes on the web pages and in the API.")]
    web_prefix: Annotated[str | None, Setting(read_prefix, "Path prefix that a proxy removes, such as `/palermo`.")]
    web_trust_proxy: Annotated[
        bool | None,
        Setting(read_truth, "Trust X-Forwarded-For, -Host, -Prefix and -Proto, because your own proxy sets them."),
    ]
    web_redact: Annotated[
        list[str] | tuple[str, ...] | None,
        Setting(
            read_list,
            "Patterns of argument names whose values are hidden on the web pages and not recorded in the journal; case "
            "does not matter.",
        ),
    ]
    web_secret: Annotated[
        str | None,
        Setting(
            read_secret,
            "Key of at least 16 characters that signs forms and sessions. Use the same value in all processes of one"
            " site; by default each start creates its own.",
            secret=True,
        ),
    ]


class SettingValues(Struct, frozen=True, kw_only=True):
    """The values of all settings after conversion, with the defaults."""

    url: str = DEFAULT_URL
    exchange: str = DEFAULT_EXCHANGE
    queue_type: str = "classic"
    tenant_order: str = "turn"
    default_queue: str = DEFAULT_QUEUE
    serializer: str = "json"
    compression: str = ""
    sign: bool = False
    signing_keys: tuple[str, ...] = ()
    publish_timeout: float = 5.0
    imports: tuple[str, ...] = ()
    schedule: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed_per_queue: bool = False
    failed_max_age: float | None = None
    failed_max_count: int | None = None
    max_deaths: int | None = 3
    journal: str = "all"
    journal_arguments: int = 2_000
    journal_max_size: int = JOURNAL_BYTES
    journal_max_age: float = JOURNAL_AGE
    events_prefix: str = ""
    events_unsubscribed: str = "keep"
    events_max_age: float = EVENTS_AGE
    events_max_size: int = EVENTS_BYTES
    max_result: int = 65_536
    release: str = ""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    metrics_token: str = ""
    web_host: str = "127.0.0.1"
    web_port: int = 3000
    web_hosts: tuple[str, ...] = ()
    web_users: str = ""
    web_oidc_issuer: str = ""
    web_oidc_client_id: str = ""
    web_oidc_client_secret: str = ""
    web_oidc_scopes: tuple[str, ...] = ("openid", "profile", "email")
    web_oidc_claim: str = "groups"
    web_oidc_roles: tuple[str, ...] = ()
    web_session: float = 43_200.0
    web_token: bool = True
    web_read_only: bool = False
    web_prefix: str = ""
    web_trust_proxy: bool = False
    web_redact: tuple[str, ...] = ("*password*", "*passwd*", "*secret*", "*token*", "*key*", "*credential*")
    web_secret: str = ""


class SettingArgumentsAndUrl(SettingArguments, total=False):
    url: Annotated[str | None, Setting(read_url, "Broker; see below.", hidden=True)]


#: All settings by name, starting with the URL.
SETTINGS: Mapping[str, Setting] = {
    name: SettingArgumentsAndUrl.__annotations__[name].__metadata__[0]
    for name in ("url", *SettingArguments.__annotations__)
}
