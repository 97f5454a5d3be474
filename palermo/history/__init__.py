"""What the journal tells, kept at hand: which jobs ended and how, what happened to each, who did what.

All of it is a view of the journal that may be thrown away: following.py reads, the others keep.
"""
