"""Serves the style page and the pages of an empty embedded broker: `python -m tests.webui.styleguide`."""

import tempfile

import uvicorn

from palermo.settings.settings import Settings
from palermo.webui.app import create_app
from palermo.webui.site import ANYONE
from tests.webui.styleguide import add_styleguide

_PORT = 3001


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="palermo-styleguide-") as folder:
        app = create_app(settings=Settings(url=f"sqlite:///{folder}/jobs.db"), auth=ANYONE)
        add_styleguide(app)
        print(f"http://127.0.0.1:{_PORT}/styleguide")
        uvicorn.run(app, port=_PORT, log_level="warning")


if __name__ == "__main__":
    main()
