-- What a job did to its workers: the tags of the consumers that died while they held it, a line each.

alter table job add column deaths text not null default '';
