"""The module that a worker imports for a Flask application: it creates the application in FLASK_APP.

`flask palermo worker` is `palermo worker palermo.contrib.flask_autoload`.
"""

from flask.cli import ScriptInfo

from palermo.settings.environment import flask_app

#: The application; creating it imports the modules with its jobs.
app = ScriptInfo(app_import_path=flask_app() or None).load_app()
