"""The rendering of pages: templates, numbers and times as text, charts, a job's timeline."""
