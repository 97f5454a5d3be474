"""The workers that use the file: which of them live, what they report, and the commands to them."""
