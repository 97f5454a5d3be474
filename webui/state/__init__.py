"""The state that pages and API show: views of broker and journal that many requests share, listings, job search."""
