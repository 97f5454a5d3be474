-- Events. `state` is a group's subscription, as JSON. An event that is kept is not for any group: what each of them gets
-- is a job of its own.

create table subscription (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;

create table event (
    id integer primary key autoincrement,
    exchange text not null,
    topic text not null,
    -- When it was published, in Unix seconds.
    at real not null,
    message_id text not null,
    content_type text not null,
    content_encoding text not null,
    headers text not null,
    properties text not null,
    body blob not null
);

create index event_of on event (exchange, id);
