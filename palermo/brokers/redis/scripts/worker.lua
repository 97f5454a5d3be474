-- The life of a worker: ARGV[1] says what happens to it, ARGV[2] is its id within Redis.
--   enter LEASE TAG SELECTION REPORT BEFORE QUEUE…
--                                             it begins; BEFORE has its ids in sessions that were cut off
--   beat LEASE REPORT                         it goes on; '' for the report that is known already. Returns 0 if others
--                                             took it for dead
--   leave LIVES                               it ends, and its jobs go back; LIVES is its name if only its session ends
--   reap                                      workers whose lease has ended give their jobs back; returns how many jobs

local action, holder = ARGV[1], ARGV[2]

-- Seconds for which the jobs are known that were taken from a worker whose lease had ended: it may come back.
local TAKEN_FOR = 600

-- A worker ends, and its jobs go back. `died` is its name if it died with them. `lives` is its name if it only lost its
-- session: the worker that gets one of the jobs next is told that this one has it.
local function leave(worker, died, lives)
  local count = 0
  for _, number in ipairs(call('HKEYS', key('held:' .. worker))) do
    give_back(worker, number, died)
    count = count + 1
    if died ~= '' then
      call('SADD', key('taken:' .. worker), number)
      call('EXPIRE', key('taken:' .. worker), TAKEN_FOR)
    end
    if lives ~= '' then
      call('HSET', key('runs-at'), number, lives)
    end
  end
  for _, queue in ipairs(call('HKEYS', key('queues'))) do
    call('SREM', key('idle:' .. queue), worker)
  end
  call('DEL', key('worker:' .. worker), key('held:' .. worker))
  call('ZREM', key('leases'), worker)
  return count
end

-- A worker is back that had another id in a session that was cut off. If it counted as dead, that is taken back.
local function come_back(before, tag)
  leave(before, '', tag)
  for _, number in ipairs(call('SMEMBERS', key('taken:' .. before))) do
    local deaths = call('HGET', key('deaths'), number)
    if deaths then
      local first, last = string.find('\n' .. deaths, '\n' .. tag .. '\n', 1, true)
      if first then
        call('HSET', key('deaths'), number, string.sub(deaths, 1, first - 1) .. string.sub(deaths, last))
      end
      call('HSET', key('runs-at'), number, tag)
    end
  end
  call('DEL', key('taken:' .. before))
end

-- Give back the jobs of workers that have died, and jobs that are claimed for longer than they allow.
local function reap()
  local now, count = server_time(), 0
  for _, worker in ipairs(call('ZRANGEBYSCORE', key('leases'), '-inf', now)) do
    count = count + leave(worker, call('HGET', key('worker:' .. worker), 'tag') or '?', '')
  end
  for _, lock in ipairs(call('ZRANGEBYSCORE', key('locks'), '-inf', now)) do
    local worker, number = string.match(lock, '^(%S+) (%S+)$')
    give_back(worker, number, call('HGET', key('worker:' .. worker), 'tag') or '?')
    call('ZREM', key('locks'), lock)
    count = count + 1
  end
  return count
end

write_in_any_case()
if action == 'enter' then
  local lease, tag, selection, report, befores = unpack(ARGV, 3, 7)
  for before in string.gmatch(befores, '%S+') do
    come_back(before, tag)
  end
  reap()
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
  reap()
  return 1
elseif action == 'leave' then
  return leave(holder, '', ARGV[3])
end
return reap()
