-- How a worker claims the next job of a queue. After common.lua, for the scripts that use it.
-- A tenant's stride is how far it moves on when it is served: palermo/core/fair_scheduling.py.

-- The tenant of the queue whose turn it is has had its turn.
local function take_turn(queue, tenant, mark, stride)
  local last = number_in('marks', queue, 0)
  call('HSET', key('marks'), queue, math.max(last, mark))
  if call('EXISTS', place_of(queue, tenant)) == 1 then
    local share = number_in('shares:' .. queue, tenant, 1)
    call('ZADD', key('turns:' .. queue), mark + stride / math.max(0.001, math.min(1000, share)), tenant)
  end
  left(queue, tenant)
end

local function pop(queue, stride)
  local found = call('ZPOPMIN', key('queue:' .. queue))
  if found[1] then
    return found[1], found[2], ''
  end
  local turn = call('ZRANGE', key('turns:' .. queue), 0, 0, 'WITHSCORES')
  local tenant = turn[1]
  if not tenant then
    return nil
  end
  found = call('ZPOPMIN', place_of(queue, tenant))
  take_turn(queue, tenant, tonumber(turn[2]), stride)
  return found[1], found[2], tenant
end

-- Claim a job for a worker: its number, the number of its claims, its queue, the workers that died with it, its cancel
-- mark and its message; and the worker that goes on with it since its session was cut off, if there is one. Returns nil
-- if no job waits.
local function claim(holder, queue, stride)
  local number, score, tenant = pop(queue, stride)
  while number do
    local blob = call('HGET', key('jobs'), number)
    if blob then
      local times = number_in('claims', number, 0) + 1
      local deaths, mark, runs_at = '', '', nil
      if times > 1 then
        deaths = call('HGET', key('deaths'), number) or ''
        runs_at = call('HGET', key('runs-at'), number) or nil
        call('HDEL', key('runs-at'), number)
      end
      call('HSET', key('held:' .. holder), number, cmsgpack.pack({ times, score, queue, tenant }))
      if tonumber(score) < STEP then
        local permit = call('HGET', key('permits'), number)
        if permit then
          call('SREM', key('called:' .. permit), number)
        end
      end
      if call('EXISTS', key('cancels')) == 1 then
        mark = call('HGET', key('cancels'), id_in(blob)) or ''
      end
      return { number, tostring(times), queue, deaths, mark, blob, runs_at }
    end
    number, score, tenant = pop(queue, stride)
  end
  return nil
end

-- Have the worker woken for a job of the queue, in the same step in which it finds none: so no job comes unheard.
-- `idle` is the version of the queues by which the worker has a free slot, or 'batch' if it waits for a batch's next job.
local function wait_for(holder, queue, idle)
  call('SADD', key('idle:' .. queue), holder)
  call('HSET', key('worker:' .. holder), 'idle', idle)
end
