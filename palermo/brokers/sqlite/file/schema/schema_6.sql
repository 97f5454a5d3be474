-- The journal. `body` is a batch as palermo.core.journal_records encodes it, `at` when it was stored, in Unix seconds.

create table journal (
    seq integer primary key autoincrement,
    exchange text not null,
    at real not null,
    body blob not null
);

create index journal_of on journal (exchange, seq);
