"""Views of the journal: which jobs ended and how, what happened to each job, and who did what.

A view may be thrown away, since it can be read from the journal again: journal_reader.py reads, the other modules keep.
"""
