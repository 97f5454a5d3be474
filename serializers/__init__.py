"""The serializers and compressions that come with Palermo, found by entry point. See palermo/serialization.py."""
