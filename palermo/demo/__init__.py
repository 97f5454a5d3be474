"""`palermo demo`: the whole product at work in one terminal.

jobs           the job that parses one
steps          the steps of the demo, their checks, and the files that it parses
runner         the work before and after the steps
screen         the output
damaged/       files that fail on every machine
"""
