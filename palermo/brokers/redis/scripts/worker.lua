-- The life of a worker. ARGV[1] is one of these events, ARGV[2] the worker's id within Redis.
--   enter LEASE TAG SELECTION REPORT BEFORE QUEUE…
--                                             starts; BEFORE has its ids in lost sessions
--   beat LEASE REPORT                         renews its lease, and its report unless ''; returns 0 if it is dead
--   leave LIVES                               ends, and releases its jobs; LIVES is its name if only its session ends
--   reap LEASE (no id)                        releases jobs of workers with expired leases; returns their number

local action, holder = ARGV[1], ARGV[2]

-- Seconds without a renewal by any worker after which Redis, or the way to it, counts as having been down: each worker
-- renews its lease four times a second. Second, the longest pause between two attempts of a worker to connect
-- (MAX_PAUSE in worker/parent/broker_session.py), which is never longer than the outage.
local AWAY, LONGEST_PAUSE = 1, 30

-- Seconds for which jobs taken from a worker with an expired lease are remembered, since it may return.
local TAKEN_FOR = 600

-- Release a worker's jobs and delete the worker. `died` is its name if it died while running them. `lives` is its name
-- if it only lost its session: the next worker to get one of the jobs is informed that this one runs it.
-- If a job can't be released because another program has replaced the key of its queue, the job and the worker's data
-- stay until that is repaired. Other jobs are not affected.
local function leave(worker, died, lives)
  local held, count = try('HKEYS', 'held:' .. worker), 0
  local all = held ~= nil
  for _, number in ipairs(held or {}) do
    if pcall(release, worker, number, died) then
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

-- A worker has returned from a lost session, in which it had another id. If it counted as dead, that is reverted.
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

-- Whether workers with expired leases count as dead. If no lease was renewed for a while, all workers first get time to
-- reconnect. `renews` is whether the caller is a worker that renews its own lease.
local function leases_count(now, lease, renews)
  local last, noticed, back_by = unpack(try('HMGET', 'renewals', 'last', 'noticed', 'back-by') or {})
  if tonumber(last) and noticed ~= last then
    local away = now - tonumber(last)
    if away < 0 then
      -- The server's clock was set back, which would prolong the leases.
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

-- Release the jobs of dead workers.
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
