"""Views of jobs that the commands, the API and the pages share."""
