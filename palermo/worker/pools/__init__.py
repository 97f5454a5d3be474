"""The process, thread and async pools, in the parent: they fork, limit, kill and replace slots.

    pool.py         the protocol of all pools
    forked_pool.py  decides which process runs a job, and what the end of a process means for its jobs
    child.py        a child with its jobs, and a place: its current child takes jobs, and retired ones finish theirs
    children.py     the template, and starting and ending the children that it forks

There is one class of pool and one of child. In a process pool each slot has a place of its own, and in a thread or
async pool all slots share one place.
"""
