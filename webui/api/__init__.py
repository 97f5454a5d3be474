"""What the API under /api shares: the bodies of requests and answers, and its description."""
