"""Prometheus metrics of workers and the web process. Needs the extra `metrics`.

catalogue.py contains all names, totals.py counts jobs, and exposition.py renders metrics for scrapers. worker.py
collects a worker's metrics and endpoint.py serves them. The web process's metrics are in palermo/webui/monitoring.py.
"""

import hmac
from importlib.util import find_spec

from palermo.errors import SettingInvalid


def check_installed() -> None:
    """Raise SettingInvalid if prometheus_client isn't installed. The text says how to install it."""
    if find_spec("prometheus_client") is None:
        raise SettingInvalid(f"metrics need prometheus_client: {INSTALL}.")


#: The command to install it.
INSTALL = "pip install 'palermo[metrics]'"


def is_bearer(authorization: str, token: str) -> bool:
    """Whether an `Authorization` header contains this token."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
