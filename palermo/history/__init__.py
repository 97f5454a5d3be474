"""Views of the journal: how jobs ended, the records of each job, and the actions of operators.

A view can be rebuilt from the journal at any time: journal_reader.py reads, the other modules keep the data.
"""
