"""The worker: one parent that owns the broker and runs no user code, a template that holds it, slots that run it.

    loop        takes jobs from the broker and settles them            parent
    lane        one slot's task in the loop                            parent
    session     the way to the broker, opened again and again          parent
    runner      has a slot run one job, whatever happens to it         parent
    ending      finishing, patience, or at once                        parent
    limits      what jobs and slots are allowed                        parent
    pipe        the frames between the processes                       all
    template    imports the user's modules and forks the slots         template
    slot        runs one job after another                             slot
    interrupts  timeout and termination, raised in the job             slot
    executor    a message in, a result out; knows no processes         slot

`palermo.worker.run.run_worker(options)` is the way in.
"""
