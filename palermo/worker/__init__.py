"""The worker: one parent that owns the broker and runs no user code, a template that holds it, slots that run it.

    loop        takes jobs from the broker and settles them            parent
    lane        one slot's task in the loop                            parent
    session     the way to the broker, opened again and again          parent
    runner      has a slot run one job, whatever happens to it         parent
    pools       the kinds of pool, and the way into each               parent
    shared_runner  the same for pools whose slots share a child        parent
    children    starts processes, and learns how they end              parent
    ending      finishing, patience, or at once                        parent
    limits      what jobs and slots are allowed                        parent
    pipe        the frames between the processes                       all
    template    imports the user's modules and forks the slots         template
    slot        runs one job after another                             slot
    shared_slot    runs the jobs of many slots: threads, coroutines    shared child
    interrupts  timeout and termination, raised in the job             slot
    executor    a message in, a result out; knows no processes         slot

`palermo.worker.run.run_worker(options)` is the way in.
"""
