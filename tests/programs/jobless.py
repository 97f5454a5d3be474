"""A module without a job."""
