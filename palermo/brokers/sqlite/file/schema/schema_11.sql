-- `upto` is how many bytes the batches of an exchange have up to this one, those that are deleted by now among them. So what
-- is too much is found without reading all that is there.

alter table journal add column upto integer not null default 0;

insert or replace into journal (seq, exchange, at, body, upto)
select seq, exchange, at, body, sum(length(body)) over (partition by exchange order by seq) from journal;
