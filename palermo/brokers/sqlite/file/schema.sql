-- The tables of one file. It holds the queues of any number of systems: `exchange` keeps them apart.
-- Instants are Unix seconds. A `state` is all that is known of a thing, as JSON; the columns beside it are searched.

create table meta (
    key text primary key,
    value
) without rowid;

-- `machine` and `seen` keep a second machine out; `queues` counts every change of the tables queue and pause.
insert into meta values ('machine', ''), ('seen', 0.0), ('queues', 0);

create table queue (
    id integer primary key autoincrement,
    exchange text not null,
    name text not null,
    -- 1 once it was deleted while a worker held a job of it; shown again if that job comes back.
    hidden integer not null default 0,
    unique (exchange, name)
);

create trigger queue_made after insert on queue
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger queue_changed after update on queue
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger queue_gone after delete on queue
    begin update meta set value = value + 1 where key = 'queues'; end;

-- A consumer. It lives as long as a process holds a lock on its file.
create table holder (
    id integer primary key autoincrement,
    exchange text not null,
    tag text not null,
    lock text not null unique,
    selection text not null,
    report text not null
);

-- AUTOINCREMENT, since without it SQLite uses an id again once the table has been empty,
-- and a late settlement would remove another worker's job.
create table job (
    id integer primary key autoincrement,
    queue integer not null references queue (id),
    holder integer references holder (id),
    slot integer,
    claims integer not null default 0,
    -- When the claim ends although its holder lives; null for never.
    held_until real,
    -- The tags of the consumers that died while they held it, a line each.
    deaths text not null default '',
    priority integer not null default 0,
    -- The limited key that it runs with, or is to run with.
    permit text,
    -- Null for a job of no tenant, and for one that has had its tenant's turn and waits before all others for its permit.
    tenant text,
    message_id text not null,
    content_type text not null,
    content_encoding text not null,
    headers text not null,
    properties text not null,
    body blob not null
);

create index job_waiting on job (queue, id) where holder is null;
create index job_next on job (queue, tenant, priority desc, id) where holder is null;
create index job_held on job (holder) where holder is not null;
create index job_held_until on job (held_until) where held_until is not null;
create index job_permit on job (permit) where permit is not null;

-- Jobs that are due later. When one is due it is put at the end of its queue, which is made then if need be.
create table later (
    id integer primary key autoincrement,
    exchange text not null,
    queue text not null,
    -- Its wire name.
    job text not null,
    run_at real not null,
    -- The limited key that it waits for, if it was put aside.
    permit text,
    message_id text not null,
    content_type text not null,
    content_encoding text not null,
    headers text not null,
    properties text not null,
    body blob not null
);

create index later_due on later (exchange, run_at, id);
create index later_message on later (exchange, message_id);
create index later_permit on later (permit, id) where permit is not null;

-- `name` is a paused queue, and `state` the user who paused it.
create table pause (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

-- Workers learn of it as they learn of new queues.
create trigger pause_made after insert on pause
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger pause_gone after delete on pause
    begin update meta set value = value + 1 where key = 'queues'; end;

-- Marks of cancelled jobs. `name` is a job's id. `state` is the second up to which the mark holds, and the user who made it.
create table cancel (
    id integer primary key autoincrement,
    exchange text not null,
    name text not null,
    state text not null,
    unique (exchange, name)
);

-- However a job goes, by being dropped, run, requeued out of failed or purged: its mark goes with it.
create trigger job_gone after delete on job when exists (select 1 from cancel)
    begin delete from cancel where name = old.message_id
        and exchange = (select exchange from queue where id = old.queue); end;

-- Messages between sessions: commands to workers, their replies, and the ids of jobs that were cancelled.
create table message (
    id integer primary key autoincrement,
    exchange text not null,
    channel text not null,
    body text not null,
    at real not null
);

-- Recurring jobs. `due` is when one fires next; null while it is disabled.
create table recurring (
    exchange text not null,
    name text not null,
    due real,
    state text not null,
    primary key (exchange, name)
) without rowid;

create index recurring_due on recurring (exchange, due) where due is not null;

-- Groups and their topics; and of groups that are getting earlier events, the place of the last one that they got and of
-- the last one that they will get.
create table subscription (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

create table told (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

-- Two logs: `journal`, whose `body` is a batch as palermo.core.journal_records encodes it, and `events`, the kept ones as
-- JSON. `upto` is the size of all bodies of a log up to this one, deleted ones included: so the surplus is found without
-- reading all entries.
create table log (
    id integer primary key autoincrement,
    exchange text not null,
    name text not null,
    topic text not null,
    at real not null,
    body blob not null,
    upto integer not null
);

create index log_of on log (exchange, name, id);

-- Keys of unique jobs. `holder` is the job that has the key, null if none has. At `due` a job that is
-- kept in the state is published, or else the row says nothing any more.
create table key (
    exchange text not null,
    name text not null,
    holder text,
    due real,
    state text not null,
    primary key (exchange, name)
) without rowid;

create index key_holder on key (exchange, holder) where holder is not null;
create index key_due on key (exchange, due) where due is not null;

-- The jobs that workers have announced as unique, for programs that enqueue them without their code. A `state` is a
-- palermo.contract.unique_jobs.UniqueJob.
create table unique_job (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

-- Workflows that run or have failed: see brokers/features/workflows.py. A `state` is a StoredFlow; at `due` a signal or
-- the workflow has run out of time.
create table workflow (
    exchange text not null,
    name text not null,
    due real,
    state blob not null,
    primary key (exchange, name)
) without rowid;

create index workflow_due on workflow (exchange, due) where due is not null;

-- The arguments of their steps, and the outputs.
create table workflow_data (
    exchange text not null,
    workflow text not null,
    name text not null,
    data blob not null,
    primary key (exchange, workflow, name)
);

-- The keys of jobs with a limit or a rate: see core/limits.py.
create table limited (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

-- The tenants that have jobs waiting, and how many, in the order of core/fair_scheduling.py: the lowest `mark` is next.
create table tenant (
    queue integer not null references queue (id) on delete cascade,
    name text not null,
    share real not null default 1,
    mark real not null,
    waiting integer not null,
    primary key (queue, name)
) without rowid;

create index tenant_turn on tenant (queue, mark, name);

-- The mark of the tenant that was served last.
create table turn (
    queue integer primary key references queue (id) on delete cascade,
    mark real not null
) without rowid;

create trigger tenant_claimed after update of holder on job
    when new.tenant is not null and old.holder is null and new.holder is not null
    begin update tenant set waiting = waiting - 1 where queue = new.queue and name = new.tenant; end;

create trigger tenant_released after update of holder on job
    when new.tenant is not null and old.holder is not null and new.holder is null
begin
    insert into tenant (queue, name, mark, waiting)
        select new.queue, new.tenant, coalesce((select mark from turn where queue = new.queue), 0) + 1, 0
        where not exists (select 1 from tenant where queue = new.queue and name = new.tenant);
    update tenant set waiting = waiting + 1 where queue = new.queue and name = new.tenant;
end;

create trigger tenant_removed after delete on job when old.tenant is not null and old.holder is null
begin
    update tenant set waiting = waiting - 1 where queue = old.queue and name = old.tenant;
    delete from tenant where queue = old.queue and name = old.tenant and waiting <= 0;
end;
