"""Values to bytes and back: the contract for serializers, and the registry that finds them by media type."""
