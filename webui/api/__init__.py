"""The parts that all resources of the API share: the bodies of requests and responses, and the description."""
