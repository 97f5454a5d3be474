-- Recurring jobs. `due` is when one fires next, in Unix seconds; null while it is disabled. `state` is all of it, as JSON.

create table recurring (
    exchange text not null,
    name text not null,
    due real,
    state text not null,
    primary key (exchange, name)
) without rowid;

create index recurring_due on recurring (exchange, due) where due is not null;
