"""`palermo demo`: the whole product at work in one terminal.

source_files   the files that it parses
jobs           the job that parses one
steps          the steps of the demo, and their checks
runner         the work before and after the steps
screen         the output
damaged/       files that fail on every machine
"""
