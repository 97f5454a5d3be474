-- How a worker claims the next job of a queue, for the scripts that need it. Loaded after common.lua.
-- A tenant's stride is how far it advances when it is served: palermo/core/fair_scheduling.py.

-- Record that the tenant with the queue's current turn was served.
local function take_turn(queue, tenant, mark, stride)
  local last = number_in('marks', queue, 0)
  try('HSET', 'marks', queue, math.max(last, mark))
  if call('EXISTS', place_of(queue, tenant)) == 1 then
    local share = number_in('shares:' .. queue, tenant, 1)
    call('ZADD', key('turns:' .. queue), mark + stride / math.max(0.001, math.min(1000, share)), tenant)
  end
  left(queue, tenant)
end

-- The next job of a queue: its number, score, tenant, and the tenant's mark; nil if none waits.
local function next_in(queue)
  local found = call('ZRANGE', key('queue:' .. queue), 0, 0, 'WITHSCORES')
  local tenant, mark = '', nil
  while not found[1] do
    tenant, mark = unpack(call('ZRANGE', key('turns:' .. queue), 0, 0, 'WITHSCORES'))
    if not tenant then
      return nil
    end
    found = call('ZRANGE', place_of(queue, tenant), 0, 0, 'WITHSCORES')
    if not found[1] then
      call('ZREM', key('turns:' .. queue), tenant)  -- another program added it
    end
  end
  return found[1], found[2], tenant, tonumber(mark)
end

-- Remove a job from its place, because it is claimed or has no message any more.
local function leave_place(queue, tenant, number, mark, stride)
  call('ZREM', place_of(queue, tenant), number)
  if tenant ~= '' then
    take_turn(queue, tenant, mark, stride)
  end
end

-- Claim a job for a worker. Returns its number, the number of its claims, its queue, the workers that died while
-- running it, its cancel mark and message, and the name of the worker that still runs it after losing its session, if
-- any. Returns nil if no job waits.
local function claim(holder, queue, stride)
  local number, score, tenant, turn = next_in(queue)
  while number do
    local blob = call('HGET', key('jobs'), number)
    if blob then
      local times = claims_of(number) + 1
      local deaths, mark, runs_at = '', '', nil
      call('HSET', key('held:' .. holder), number, cmsgpack.pack({ times, score, queue, tenant }))
      leave_place(queue, tenant, number, turn, stride)
      if times > 1 then
        deaths = try('HGET', 'deaths', number) or ''
        runs_at = try('HGET', 'runs-at', number) or nil
        try('HDEL', 'runs-at', number)
      end
      if tonumber(score) < STEP then
        local permit = try('HGET', 'permits', number)
        if permit then
          try('SREM', 'called:' .. permit, number)
        end
      end
      if call('EXISTS', key('cancels')) == 1 then
        mark = try('HGET', 'cancels', id_in(blob)) or ''
      end
      return { number, tostring(times), queue, deaths, mark, blob, runs_at }
    end
    leave_place(queue, tenant, number, turn, stride)
    number, score, tenant, turn = next_in(queue)
  end
  return nil
end

-- Have the worker woken for a job of the queue. Call this in the script that found no job, so that no job is missed.
-- `idle` is the version of the queues as known to a worker with a free slot, or 'batch' for one that waits for a
-- batch's next job.
local function wait_for(holder, queue, idle)
  try('SADD', 'idle:' .. queue, holder)
  call('HSET', key('worker:' .. holder), 'idle', idle)
end
