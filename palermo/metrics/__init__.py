"""Numbers for Prometheus: what they are called, what they count, and how they are told. Needs the extra `metrics`.

catalogue.py has every name, totals.py adds up what jobs did, exposition.py writes both for a
scraper; worker.py says what a worker tells, and endpoint.py is its own small server. What the web process
tells is in palermo/webui/metrics.py.
"""

from importlib.util import find_spec

from palermo.errors import SettingInvalid


def check_installed() -> None:
    """Raise SettingInvalid where prometheus_client is not installed, saying how to."""
    if find_spec("prometheus_client") is None:
        raise SettingInvalid(f"metrics need prometheus_client: {INSTALL}.")


#: What to do about it.
INSTALL = "pip install 'palermo[metrics]'"
