"""The settings: their meanings, checks and sources. Only this folder reads the environment."""
