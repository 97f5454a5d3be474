"""The parts that all other folders build on: the site, one request with its user, and filters."""
