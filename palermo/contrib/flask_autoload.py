"""The module that workers import for a Flask application. It creates the application in FLASK_APP.

`flask palermo worker` runs `palermo worker palermo.contrib.flask_autoload`.
"""

from flask.cli import ScriptInfo

from palermo.settings.environment import flask_app

#: Creating the application imports the modules with its jobs.
app = ScriptInfo(app_import_path=flask_app() or None).load_app()
