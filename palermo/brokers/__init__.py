"""The places where jobs can wait; each is found by its URL's scheme through the entry points `palermo.brokers`."""
