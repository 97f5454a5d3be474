-- The tables of one file, which may hold the queues of several systems: `exchange` separates them.
-- Instants are Unix seconds. A `state` is everything known about a thing, as JSON; the other columns are for queries.

create table meta (
    key text primary key,
    value
) without rowid;

-- `machine` and `seen` keep a second machine out; `queues` counts the changes of the tables queue and pause.
insert into meta values ('machine', ''), ('seen', 0.0), ('queues', 0);

create table queue (
    id integer primary key autoincrement,
    exchange text not null,
    name text not null,
    -- 1 after it was deleted while a worker held one of its jobs. Shown again if that job is released.
    hidden integer not null default 0,
    unique (exchange, name)
);

create trigger queue_made after insert on queue
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger queue_changed after update on queue
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger queue_gone after delete on queue
    begin update meta set value = value + 1 where key = 'queues'; end;

-- A consumer. It lives as long as a process holds a lock on the file `lock`.
create table holder (
    id integer primary key autoincrement,
    exchange text not null,
    tag text not null,
    lock text not null unique,
    selection text not null,
    report text not null
);

-- AUTOINCREMENT, because SQLite would otherwise reuse ids once the table has been empty, and a late settlement would
-- delete another worker's job.
create table job (
    id integer primary key autoincrement,
    queue integer not null references queue (id),
    holder integer references holder (id),
    slot integer,
    claims integer not null default 0,
    -- When the claim ends even if its holder lives; null for never.
    held_until real,
    -- The tags of the consumers that died while they held it, one per line.
    deaths text not null default '',
    priority integer not null default 0,
    -- The limited key whose permit it has, or is offered.
    permit text,
    -- Null for a job without a tenant, and for one whose tenant has had its turn and which waits for its permit ahead
    -- of all others.
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

-- Scheduled jobs. A due one is appended to its queue, which is created if necessary.
create table later (
    id integer primary key autoincrement,
    exchange text not null,
    queue text not null,
    -- Its wire name.
    job text not null,
    run_at real not null,
    -- The limited key whose permit it waits for.
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

-- Workers detect pauses like new queues.
create trigger pause_made after insert on pause
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger pause_gone after delete on pause
    begin update meta set value = value + 1 where key = 'queues'; end;

-- Marks of cancelled jobs. `name` is a job's id; `state` is the second up to which enqueues are affected, and the user.
create table cancel (
    id integer primary key autoincrement,
    exchange text not null,
    name text not null,
    state text not null,
    unique (exchange, name)
);

-- A job's mark is deleted with the job, for whatever reason.
create trigger job_gone after delete on job when exists (select 1 from cancel)
    begin delete from cancel where name = old.message_id
        and exchange = (select exchange from queue where id = old.queue); end;

-- Messages between sessions: commands to workers, their replies, and ids of cancelled jobs.
create table message (
    id integer primary key autoincrement,
    exchange text not null,
    channel text not null,
    body text not null,
    at real not null
);

-- Recurring jobs. `due` is when the next one fires; null while it is disabled.
create table recurring (
    exchange text not null,
    name text not null,
    due real,
    state text not null,
    primary key (exchange, name)
) without rowid;

create index recurring_due on recurring (exchange, due) where due is not null;

-- Groups and their topics. For groups that still receive earlier events, `replay` has the places of the last event
-- that they have received and of the last one to receive.
create table subscription (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

create table replay (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

-- Two logs: `journal`, whose `body` is a batch (palermo.core.journal_records), and `events`, kept events as JSON.
-- `upto` is the size of all bodies in the log so far, including deleted ones, so that trimming needs no sum over the
-- log.
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

-- Keys of unique jobs. `holder` is the job that has the key, or null. At `due` a job in the state is published, or the
-- row has expired.
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

-- The unique jobs that workers have announced, for programs without their code. A `state` is a
-- palermo.contract.unique_jobs.UniqueJob.
create table unique_job (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

-- Running and failed workflows: see brokers/features/workflows.py. A `state` is a StoredFlow; at `due` a signal or the
-- workflow times out.
create table workflow (
    exchange text not null,
    name text not null,
    due real,
    state blob not null,
    primary key (exchange, name)
) without rowid;

create index workflow_due on workflow (exchange, due) where due is not null;

-- The arguments and outputs of their steps.
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

-- The tenants with waiting jobs. The one with the lowest `mark` is next: see core/fair_scheduling.py.
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
