-- Jobs that are due later, apart from those that wait: who takes jobs need not pass over them. When one is due it is put
-- at the end of its queue, which is made then if need be. `job` is its wire name.

create table later (
    id integer primary key autoincrement,
    exchange text not null,
    queue text not null,
    job text not null,
    -- Unix seconds.
    run_at real not null,
    message_id text not null,
    content_type text not null,
    content_encoding text not null,
    headers text not null,
    properties text not null,
    body blob not null
);

create index later_due on later (exchange, run_at, id);
create index later_message on later (exchange, message_id);
