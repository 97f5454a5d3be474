-- The life of a worker: ARGV[1] says what happens to it, ARGV[2] is its id within Redis.
--   enter LEASE TAG SELECTION REPORT QUEUE…   it begins
--   beat LEASE REPORT                         it goes on; '' for the report that is known already. Returns 0 if others
--                                             took it for dead
--   leave                                     it ends, and its jobs go back
--   reap                                      workers whose lease has ended give their jobs back; returns how many jobs

local action, holder = ARGV[1], ARGV[2]

local function leave(worker, died)
  local count = 0
  for _, number in ipairs(call('HKEYS', key('held:' .. worker))) do
    give_back(worker, number, died)
    count = count + 1
  end
  for _, queue in ipairs(call('HKEYS', key('queues'))) do
    call('SREM', key('idle:' .. queue), worker)
  end
  call('DEL', key('worker:' .. worker), key('held:' .. worker))
  call('ZREM', key('leases'), worker)
  return count
end

-- Give back the jobs of workers that have died, and jobs that are claimed for longer than they allow.
local function reap()
  local now, count = server_time(), 0
  for _, worker in ipairs(call('ZRANGEBYSCORE', key('leases'), '-inf', now)) do
    count = count + leave(worker, call('HGET', key('worker:' .. worker), 'tag') or '?')
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
  local lease, tag, selection, report = unpack(ARGV, 3, 6)
  reap()
  for index = 7, #ARGV do
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
  return leave(holder, '')
end
return reap()
