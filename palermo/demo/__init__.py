"""`palermo demo`: the whole product at work in one terminal.

sources    which files it parses
jobs       the job that parses one
story      what happens, step by step, and whether it did
run        what comes before and after
show       how it is told
damaged/   files that fail on every machine
"""
