-- `held_until` is when the claim on a job ends although its holder lives, in Unix seconds; null for never.
-- `priority` is what goes first in a queue. `permit` is the limited key that a job runs with, or is to run with; of a job that is
-- put aside, the one that it waits for. `limited` has what is known of each: instants are Unix seconds, see core/limits.py.

alter table job add column held_until real;
alter table job add column priority integer not null default 0;

create index job_next on job (queue, priority desc, id) where holder is null;
create index job_held_until on job (held_until) where held_until is not null;

alter table job add column permit text;
alter table later add column permit text;
create index job_permit on job (permit) where permit is not null;
create index later_permit on later (permit, id) where permit is not null;

create table limited (
    exchange text not null,
    key text not null,
    most integer,
    rate text not null,
    next real not null,
    free real not null,
    again real not null,
    primary key (exchange, key)
) without rowid;
