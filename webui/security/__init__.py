"""Access control: the guard of all requests, authentication, form tokens, and the audit log."""
