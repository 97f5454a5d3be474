"""All actions of the web pages and the API, which change something only through these functions.

Each function checks the user's role, acts through the inspector, and writes the audit log.
"""
