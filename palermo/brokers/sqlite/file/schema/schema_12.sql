-- The jobs that workers have announced as unique, for programs that enqueue them without their code. `state` is a
-- palermo.contract.unique_jobs.UniqueJob, as JSON.

create table unique_job (
    exchange text not null,
    name text not null,
    state text not null,
    primary key (exchange, name)
) without rowid;
