"""The serializers and compressions that come with Palermo, found by entry point. The contract is palermo/serialization.py."""
