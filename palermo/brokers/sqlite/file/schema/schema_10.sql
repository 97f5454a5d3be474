-- Jobs of tenants: those of a queue in the order of their turns, as palermo.core.fair_scheduling has it.

-- Null for a job of nobody, and for one that has had its tenant's turn and waits before all others for its permit.
alter table job add column tenant text;

drop index job_next;
create index job_next on job (queue, tenant, priority desc, id) where holder is null;

-- Those that have jobs waiting, and how many; `mark` says whose turn it is, the lowest first.
create table tenant (
    queue integer not null references queue (id) on delete cascade,
    name text not null,
    share real not null default 1,
    mark real not null,
    waiting integer not null,
    primary key (queue, name)
) without rowid;

create index tenant_turn on tenant (queue, mark, name);

-- The mark of whoever was served last.
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
