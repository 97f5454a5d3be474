"""The settings: what they mean, how they are checked, where they come from. Only this folder reads the environment."""
