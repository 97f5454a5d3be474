"""The same work by Palermo, by a bare client and by other job systems, in turns: `python -m benchmarks.peers`.

The driver: __main__ (the command line), workloads (what is done), tour (the rounds of one), players (what each does in
its turn), contender (one system at one workload, its producer and its worker), stores (RabbitMQ and redis), scores and
table (the arithmetic and the printing). Each system is two files: systems/NAME.py says how it is started and what it
guarantees, apps/NAME.py is the program that a user of it writes. Those of the peers run in a Python of their own,
see requirements.txt, and import nothing of the driver but marks, order and setup.
"""
