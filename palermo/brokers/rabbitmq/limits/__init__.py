"""Limits and rates of jobs, on the leader's side, and the questions of workers to it."""
