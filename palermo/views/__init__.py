"""Views of jobs shared by the command line, the API and the pages."""
