-- `held_until` is when the claim on a job ends although its holder lives, in Unix seconds; null for never.
-- `priority` is what goes first in a queue.

alter table job add column held_until real;
alter table job add column priority integer not null default 0;

create index job_next on job (queue, priority desc, id) where holder is null;
create index job_held_until on job (held_until) where held_until is not null;
