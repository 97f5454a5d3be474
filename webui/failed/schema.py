"""The tables of the index of failed jobs (index.py): what is searched is narrow, what is only shown lies apart."""

#: `n` is the place in the queue: it grows with the order in which jobs were read, and stays a job's own as long as
#: it lies there. `at` is 0 for a job that does not say when it failed, `kind` 0 for one without an error.
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
"""

#: What a text filter found is kept for a few texts, each in a table of these: a page, its count and its groups ask
#: for the same one after the other.
HITS = ("hits_0", "hits_1", "hits_2", "hits_3")
HIT = "create table {} (n integer primary key)"

#: In this order in an insert, and in what `detail` is read with.
JOB = "n, id, at, retries, queue, job, error, kind, trace, seen"
DETAIL = (
    "n, created_at, message, ending, preview, worker, tenant, topic,"
    " content_type, content_encoding, arguments, attempts, body"
)
MARKS = ", ".join("?" * len(DETAIL.split(",")))

#: A private database on the disk that ends with its connection; in memory is only what this cache holds.
PRAGMAS = (
    "pragma page_size = 8192",
    "pragma cache_size = -32768",
    "pragma journal_mode = off",
    "pragma synchronous = off",
    "pragma temp_store = file",
)
