-- What steers workers from afar: pauses, cancel marks, orders.

create table pause (
    exchange text not null,
    queue text not null,
    by text not null,
    primary key (exchange, queue)
) without rowid;

-- Workers learn of it as they learn of new queues.
create trigger pause_made after insert on pause
    begin update meta set value = value + 1 where key = 'queues'; end;
create trigger pause_gone after delete on pause
    begin update meta set value = value + 1 where key = 'queues'; end;

-- A mark is for jobs that were enqueued at `at`, in whole Unix seconds, or before.
create table cancel (
    id integer primary key autoincrement,
    exchange text not null,
    message_id text not null,
    at integer not null,
    by text not null,
    unique (exchange, message_id)
);

-- However a job goes, by being dropped, run, requeued out of failed or purged: its mark goes with it.
create trigger job_gone after delete on job when exists (select 1 from cancel)
    begin delete from cancel where message_id = old.message_id
        and exchange = (select exchange from queue where id = old.queue); end;

-- An order to workers. It is void after `until`, in Unix seconds, whether or not its giver lives to remove it.
create table command (
    id integer primary key autoincrement,
    exchange text not null,
    body text not null,
    until real not null
);

-- `body` is null from a worker that had nothing to do about it.
create table answer (
    command integer not null references command (id) on delete cascade,
    worker text not null,
    body text,
    primary key (command, worker)
) without rowid;
