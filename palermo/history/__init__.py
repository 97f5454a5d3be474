"""Views of the journal: which jobs ended and how, what happened to each job, and who did what.

A view may be thrown away, since it can be read from the journal again: journal_follower.py and journal_reader.py read,
the other modules keep.
"""
