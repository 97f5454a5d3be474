"""The program that a user of each system writes: the job, and what enqueues it, with the guarantees all are to keep.

Each module reads its setup.Setup from the environment when it is imported, by its worker or by the producer.
"""
