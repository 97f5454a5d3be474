"""The module that a worker imports for a Flask application: it makes the application that FLASK_APP names.

`flask palermo worker` is `palermo worker palermo.contrib.flask_autoload`.
"""

from flask.cli import ScriptInfo

from palermo.settings.environment import flask_app

#: The application; making it imports the modules with its jobs.
app = ScriptInfo(app_import_path=flask_app() or None).load_app()
