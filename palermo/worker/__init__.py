"""The worker: a parent process with the broker session, a template process with the user's code, and slots for the
jobs.

    parent/   the parent process, which takes jobs from the broker and settles them, and runs no user code
    pools/    the kinds of pool, in the parent: forking slots, sending them jobs, limiting and replacing them
    child/    the child processes: the template, and the slots forked from it, which run the jobs
    ipc/      the frames sent between the processes, and both ends of their socket pairs

The modules next to the folders are shared: options, limits, signals, process, `start_worker` (handle.py) and log
formats (logs.py). A folder imports only from here and from folders later in the order parent, pools, child, ipc.

`palermo.worker.parent.run.run_worker(options)` runs a worker.
"""
