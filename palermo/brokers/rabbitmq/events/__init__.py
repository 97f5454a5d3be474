"""Events: published to topics, distributed to groups, and kept in a stream."""
