-- The life of a worker: ARGV[1] says what happens to it, ARGV[2] is its id within Redis.
--   enter LEASE TAG SELECTION REPORT BEFORE QUEUE…
--                                             it begins; BEFORE has its ids in sessions that were cut off
--   beat LEASE REPORT                         it goes on; '' for the report that is known already. Returns 0 if others
--                                             took it for dead
--   leave LIVES                               it ends, and its jobs go back; LIVES is its name if only its session ends
--   reap LEASE (no id)                        workers whose lease has ended give their jobs back; returns how many jobs

local action, holder = ARGV[1], ARGV[2]

-- Seconds without any renewal after which workers may have been unable to reach Redis, or Redis was away: each worker
-- renews its lease four times a second. And the longest pause between two attempts of a worker to connect (MAX_PAUSE in
-- worker/parent/broker_session.py), which is at most as long as the worker has been away.
local AWAY, LONGEST_PAUSE = 1, 30

-- Seconds for which the jobs are known that were taken from a worker whose lease had ended: it may come back.
local TAKEN_FOR = 600

-- A worker ends, and its jobs go back. `died` is its name if it died with them. `lives` is its name if it only lost its
-- session: the worker that gets one of the jobs next is told that this one has it.
-- A job that cannot go back, because another program has the key of its queue, stays, and with it what is known of the
-- worker, until its queue is mended. It keeps no other job.
local function leave(worker, died, lives)
  local held, count = try('HKEYS', 'held:' .. worker), 0
  local all = held ~= nil
  for _, number in ipairs(held or {}) do
    if pcall(give_back, worker, number, died) then
      count = count + 1
    else
      all = false
    end
    if died ~= '' then
      try('SADD', 'taken:' .. worker, number)
      call('EXPIRE', key('taken:' .. worker), TAKEN_FOR)
    end
    if lives ~= '' then
      try('HSET', 'runs-at', number, lives)
    end
  end
  for _, queue in ipairs(call('HKEYS', key('queues'))) do
    try('SREM', 'idle:' .. queue, worker)
  end
  if all then
    call('DEL', key('worker:' .. worker), key('held:' .. worker))
    call('ZREM', key('leases'), worker)
  end
  return count
end

-- A worker is back that had another id in a session that was cut off. If it counted as dead, that is taken back.
local function come_back(before, tag)
  leave(before, '', tag)
  for _, number in ipairs(try('SMEMBERS', 'taken:' .. before) or {}) do
    local deaths = try('HGET', 'deaths', number)
    if deaths then
      local first, last = string.find('\n' .. deaths, '\n' .. tag .. '\n', 1, true)
      if first then
        try('HSET', 'deaths', number, string.sub(deaths, 1, first - 1) .. string.sub(deaths, last))
      end
      try('HSET', 'runs-at', number, tag)
    end
  end
  call('DEL', key('taken:' .. before))
end

-- Whether workers whose leases have ended count as dead. Not at first if nobody had renewed a lease for a while: then
-- all workers get the time to come back. `renews` is whether this is a worker that renews its own.
local function leases_count(now, lease, renews)
  local last, noticed, back_by = unpack(try('HMGET', 'renewals', 'last', 'noticed', 'back-by') or {})
  if tonumber(last) and noticed ~= last then
    local away = now - tonumber(last)
    if away < 0 then
      -- The server's clock was set back, and leases would go on for as long.
      for _, worker in ipairs(call('ZRANGEBYSCORE', key('leases'), now + lease, '+inf')) do
        call('ZADD', key('leases'), now + lease, worker)
      end
    end
    if away < 0 or away > AWAY then
      back_by = now + math.max(0, math.min(LONGEST_PAUSE, away)) + lease
      try('HSET', 'renewals', 'noticed', last, 'back-by', back_by)
    end
  end
  if renews then
    try('HSET', 'renewals', 'last', now)
  end
  return now >= (tonumber(back_by) or 0)
end

-- Give back the jobs of workers that have died.
local function reap(lease, renews)
  local now, count = server_time(), 0
  if not leases_count(now, lease, renews) then
    return 0
  end
  for _, worker in ipairs(call('ZRANGEBYSCORE', key('leases'), '-inf', now)) do
    count = count + leave(worker, call('HGET', key('worker:' .. worker), 'tag') or '?', '')
  end
  return count
end

write_in_any_case()
if action == 'enter' then
  local lease, tag, selection, report, befores = unpack(ARGV, 3, 7)
  for before in string.gmatch(befores, '%S+') do
    come_back(before, tag)
  end
  reap(tonumber(lease), true)
  for index = 8, #ARGV do
    declare(ARGV[index])
  end
  call('HSET', key('worker:' .. holder), 'tag', tag, 'selection', selection, 'report', report)
  call('ZADD', key('leases'), server_time() + tonumber(lease), holder)
  return 1
elseif action == 'beat' then
  if call('EXISTS', key('worker:' .. holder)) == 0 then
    return 0
  end
  call('ZADD', key('leases'), server_time() + tonumber(ARGV[3]), holder)
  if ARGV[4] ~= '' then
    call('HSET', key('worker:' .. holder), 'report', ARGV[4])
  end
  reap(tonumber(ARGV[3]), true)
  return 1
elseif action == 'leave' then
  return leave(holder, '', ARGV[3])
end
return reap(tonumber(ARGV[3]), false)
