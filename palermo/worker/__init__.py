"""The worker: a parent process with the broker session, a template with the user's code, and slots that run the jobs.

    parent/   the parent process: takes jobs from the broker and settles them; it runs no user code
    pools/    the kinds of pool, in the parent: how it forks slots, sends them jobs, limits and replaces them
    child/    the child processes: the template, and the slots that it forks, which run the jobs
    ipc/      the frames between the processes, and the two ends of their socket pairs

The modules beside the folders are shared: options, limits, signals, process; `start_worker` (handle.py); log formats
(logs.py). A folder imports only from the folders after it and from here: parent, pools, child, ipc.

`palermo.worker.parent.run.run_worker(options)` runs a worker.
"""
