"""A database and a broker for the tests: the program reads where they are when it is imported."""

import os
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="fastapi_shop-")
os.environ["SHOP_DATABASE"] = f"sqlite:///{_folder.name}/shop.db"
os.environ["PALERMO_URL"] = f"sqlite:///{_folder.name}/jobs.db"
