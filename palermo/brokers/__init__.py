"""The brokers, in which jobs wait. Each is found by its URL's scheme through the entry points `palermo.brokers`."""
