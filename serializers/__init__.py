"""The serializers and compressions that come with Palermo, found by entry point. See contract/serialization.py."""
