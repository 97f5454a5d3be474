-- Keys of unique jobs. `state` is all that is known of one, as JSON; `holder` and `queue` are of the job that has it, null
-- if none has; `due`, in Unix seconds, is when a job that is kept in the state is published, or else when the row says nothing any more.

create table key (
    exchange text not null,
    name text not null,
    holder text,
    queue text,
    due real,
    state text not null,
    primary key (exchange, name)
) without rowid;

create index key_holder on key (exchange, holder) where holder is not null;
create index key_due on key (exchange, due) where due is not null;
