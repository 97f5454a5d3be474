"""The tables of the index of failed jobs (index.py). Searched columns are in narrow tables, the others apart."""

#: `n` is the place in the queue: it grows in the order in which jobs were read, and a job keeps it as long as it lies
#: in the queue. `at` is 0 for a job that does not say when it failed, `kind` is 0 for a job without an error.
SCHEMA = """
create table name (id integer primary key, text text not null unique);
create table kind (id integer primary key, fingerprint text not null unique);
create table trace (id integer primary key, digest blob not null unique, text text not null, folded text not null);
create table job (
    n integer primary key,
    id text not null unique,
    at integer not null,
    retries integer,
    queue integer not null,
    job integer not null,
    error integer not null,
    kind integer not null,
    trace integer not null,
    seen integer not null
);
create index job_at on job (at, n);
create index job_kind on job (kind, at, queue, job, error, trace);
create table words (n integer primary key, text text not null);
create table detail (
    n integer primary key,
    created_at integer,
    message text not null,
    ending text not null,
    preview text,
    worker text,
    tenant text,
    topic text,
    content_type text not null,
    content_encoding text not null,
    arguments text not null,
    attempts text not null,
    body blob
);
create table hits_0 (n integer primary key);
create table hits_1 (n integer primary key);
create table hits_2 (n integer primary key);
create table hits_3 (n integer primary key);
"""

#: The tables that cache the results of the last text filters, one text each: a page, its count and its groups ask
#: for the same text one after the other.
HITS = ("hits_0", "hits_1", "hits_2", "hits_3")

#: The columns in the order of inserts, and of reads from `detail`.
JOB = "n, id, at, retries, queue, job, error, kind, trace, seen"
DETAIL = (
    "n, created_at, message, ending, preview, worker, tenant, topic,"
    " content_type, content_encoding, arguments, attempts, body"
)
MARKS = ", ".join("?" * len(DETAIL.split(",")))
