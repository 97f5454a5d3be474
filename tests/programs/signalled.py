"""`palermo`, which gets the signal SIGNAL when it begins to import the module MODULE, and never again."""

import os
import signal
import sys
from importlib.abc import MetaPathFinder


class Sender(MetaPathFinder):
    """Finds no module."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == os.environ.get("MODULE"):
            del os.environ["MODULE"]
            os.kill(os.getpid(), signal.Signals[f"SIG{os.environ['SIGNAL']}"])


sys.meta_path.insert(0, Sender())

from palermo.__main__ import main  # noqa: E402

main()
