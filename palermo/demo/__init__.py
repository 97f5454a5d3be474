"""`palermo demo`: Palermo at work in one terminal.

jobs           the job, which parses one file
steps          the steps of the demo, their checks, and the files to parse
runner         preparation and cleanup
screen         the output
damaged/       files that fail on every machine
"""
