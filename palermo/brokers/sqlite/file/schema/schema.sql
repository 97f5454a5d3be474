-- One file holds any number of systems: `exchange` keeps their queues apart.
-- This is version 1 and stays as it is: what is added since is in schema_2.sql, … (see _SCHEMA in opening.py).

create table meta (
    key text primary key,
    value
) without rowid;

-- `machine` and `seen` keep a second machine out; `queues` counts every change of the table queue.
insert into meta values ('machine', ''), ('seen', 0.0), ('queues', 0);

create table queue (
    id integer primary key autoincrement,
    exchange text not null,
    name text not null,
    -- 1 once it was deleted while a worker held a job of it; shown again should that job come back.
    hidden integer not null default 0,
    unique (exchange, name)
);

create trigger queue_made after insert on queue
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger queue_changed after update on queue
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger queue_gone after delete on queue
    begin update meta set value = value + 1 where key = 'queues'; end;

-- A consumer. It lives as long as somebody holds a lock on its file.
create table holder (
    id integer primary key autoincrement,
    exchange text not null,
    tag text not null,
    lock text not null unique,
    selection text not null,
    report text not null
);

-- AUTOINCREMENT, since without it SQLite uses an id again once the table has been empty,
-- and a late settlement would take away somebody else's job.
create table job (
    id integer primary key autoincrement,
    queue integer not null references queue (id),
    holder integer references holder (id),
    slot integer,
    claims integer not null default 0,
    message_id text not null,
    content_type text not null,
    content_encoding text not null,
    headers text not null,
    properties text not null,
    body blob not null
);

create index job_waiting on job (queue, id) where holder is null;
create index job_held on job (holder) where holder is not null;
