"""Views of the journal: how jobs ended, the records of each job, and operators' actions.

journal_reader.py reads the journal, and the other modules keep data, which can be rebuilt from it at any time.
"""
