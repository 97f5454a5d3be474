"""Metrics for Prometheus: their names, what they count, and how scrapers get them. Needs the extra `metrics`.

catalogue.py has every name, totals.py adds up what jobs did, exposition.py writes both for a
scraper. worker.py collects a worker's metrics, and endpoint.py serves them. The metrics
of the web process are in palermo/webui/monitoring.py.
"""

import hmac
from importlib.util import find_spec

from palermo.errors import SettingInvalid


def check_installed() -> None:
    """Raise SettingInvalid where prometheus_client is not installed; its text says how to install it."""
    if find_spec("prometheus_client") is None:
        raise SettingInvalid(f"metrics need prometheus_client: {INSTALL}.")


#: The command that installs it.
INSTALL = "pip install 'palermo[metrics]'"


def is_bearer(authorization: str, token: str) -> bool:
    """Whether a header `Authorization` holds this token."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
