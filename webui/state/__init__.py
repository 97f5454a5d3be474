"""The state shown by pages and the API: views of broker and journal shared by many requests, listings, and search."""
