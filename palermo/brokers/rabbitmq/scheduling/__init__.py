"""Scheduled and recurring jobs, on the leader's side."""
