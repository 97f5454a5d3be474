"""Access control: the guard of all requests, authentication, and form tokens."""
