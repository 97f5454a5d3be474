-- What all scripts share: the places where jobs wait, and how a job comes into one and leaves it.
-- docs/internals/redis.md has every key. KEYS[1] is the prefix of all of them, `palermo:{exchange}:`.
--
-- A job has a number, which counts all jobs that were ever stored. It is the job's id within Redis, since two jobs may
-- have the same id. A queue is a sorted set of numbers: first by priority, then by number, which is by age.

local call = redis.call
local PREFIX = KEYS[1]

-- The priority of a job that has waited for its permit already, and how far two priorities are apart in a score.
local FRONT, STEP = 10, 2 ^ 44

local function key(name)
  return PREFIX .. name
end

-- Let this script write although the memory is full. Redis refuses only the first write of a script, and only if that
-- could need memory; deleting needs none. Workers must go on then, since their work makes room.
local function write_in_any_case()
  call('DEL', key('nothing'))
end

-- The number in a field of a hash; `default` if there is none, or if another program has written something else.
local function number_in(name, field, default)
  return tonumber(call('HGET', key(name), field) or default) or default
end

local function server_time()
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- Where jobs of a queue wait: those of nobody ('' for the tenant), or those of one tenant.
local function place_of(queue, tenant)
  if tenant == '' then
    return key('queue:' .. queue)
  end
  return key('tenant:' .. #queue .. ':' .. queue .. ':' .. tenant)
end

local function score_of(priority, number)
  priority = math.max(0, math.min(FRONT, math.floor(tonumber(priority))))
  return (FRONT - priority) * STEP + tonumber(number)
end

-- Tell all consumers that other queues can be served than before.
local function queues_changed()
  call('INCR', key('version'))
  call('PUBLISH', key('bell:queues'), '')
end

local function declare(queue)
  if call('HSETNX', key('queues'), queue, 1) == 1 then
    queues_changed()
  end
end

-- Of publish.lua alone: gives the next job of a queue to an idle worker; returns whether it did.
local hand_over

-- Wake one idle worker that serves the queue. One that has died does not hear it, and one that was given a job from
-- another queue is not idle any more: then the next one is woken.
local function wake(queue)
  local holder = call('SPOP', key('idle:' .. queue))
  while holder do
    local idle = call('HGET', key('worker:' .. holder), 'idle')
    if idle and hand_over and hand_over(holder, queue, idle) then
      return
    end
    if idle and call('PUBLISH', key('wake:' .. holder), '') > 0 then
      return
    end
    holder = call('SPOP', key('idle:' .. queue))
  end
end

-- Let a job wait in a queue.
local function add(queue, tenant, share, score, number)
  call('ZADD', place_of(queue, tenant), score, number)
  if tenant ~= '' then
    call('HINCRBY', key('tenant-jobs'), queue, 1)
    if share ~= '' then
      call('HSET', key('shares:' .. queue), tenant, share)
    end
    if not call('ZSCORE', key('turns:' .. queue), tenant) then
      local mark = number_in('marks', queue, 0)
      local own = share ~= '' and share or call('HGET', key('shares:' .. queue), tenant) or 1
      call('ZADD', key('turns:' .. queue), mark + 1 / (tonumber(own) or 1), tenant)
    end
  end
  wake(queue)
end

-- Note that a job of the tenant does not wait any more; a tenant without jobs is forgotten.
local function left(queue, tenant)
  if tenant == '' then
    return
  end
  if call('HINCRBY', key('tenant-jobs'), queue, -1) <= 0 then
    call('HDEL', key('tenant-jobs'), queue)
  end
  if call('EXISTS', place_of(queue, tenant)) == 0 then
    call('ZREM', key('turns:' .. queue), tenant)
    call('HDEL', key('shares:' .. queue), tenant)
  end
end

-- Store a new job in a queue; returns its number.
local function put(queue, tenant, share, priority, keyed, blob)
  declare(queue)
  local number = call('INCR', key('number'))
  call('HSET', key('jobs'), number, blob)
  if keyed == '1' then
    call('SADD', key('keyed'), number)
  end
  if tonumber(priority) >= FRONT then
    tenant = ''
  end
  add(queue, tenant, share, score_of(priority, number), number)
  return number
end

-- Store a new job that is due later; returns its number.
local function put_later(queue, tenant, share, priority, keyed, run_at, id, blob)
  local number = call('INCR', key('number'))
  call('HSET', key('jobs'), number, blob)
  call('HSET', key('later-places'), number, cmsgpack.pack({ queue, tenant, share, priority, keyed, id }))
  call('ZADD', key('later-ids'), 0, id .. '\0' .. string.format('%.0f', number))
  call('ZADD', key('later'), run_at, number)
  if call('ZRANGE', key('later'), 0, 0)[1] == string.format('%.0f', number) then
    call('PUBLISH', key('bell:due'), '')
  end
  return number
end

-- The parts of a message; none of one that another program has changed so that it cannot be read. Its job goes on to a
-- worker all the same, which says so: an error here would keep all jobs of its queue waiting.
local function parts_of(blob)
  local read, parts = pcall(cmsgpack.unpack, string.sub(blob, 2))
  return read and type(parts) == 'table' and #parts == 7 and parts or {}
end

-- The id in a message; '' if it cannot be read.
local function id_in(blob)
  local id = parts_of(blob)[1]
  return type(id) == 'string' and id or ''
end

-- Take a job from those that are due later; returns its place and its message, nil if it is not there any more.
local function take_later(number)
  local packed = call('HGET', key('later-places'), number)
  if not packed then
    return nil
  end
  local blob = call('HGET', key('jobs'), number)
  local read, place = pcall(cmsgpack.unpack, packed)
  if not read or type(place) ~= 'table' or #place ~= 6 then
    -- Another program has changed it. The job is not lost: a person may requeue it.
    place = { 'failed', '', '', 0, '', blob and id_in(blob) or '' }
  end
  call('ZREM', key('later'), number)
  call('ZREM', key('later-ids'), place[6] .. '\0' .. number)
  call('HDEL', key('later-places'), number)
  call('HDEL', key('jobs'), number)
  local permit = call('HGET', key('waits'), number)
  if permit then
    call('HDEL', key('waits'), number)
    call('ZREM', key('waiting:' .. permit), number)
  end
  return place, blob or nil
end

-- Give a free permit to the job that has waited longest for it, and put that job into its queue.
local function hand_on(permit)
  local first = call('ZPOPMIN', key('waiting:' .. permit))[1]
  if not first then
    return
  end
  local place, blob = take_later(first)
  if blob then
    local number = put(place[1], '', '', FRONT, place[5], blob)
    call('HSET', key('permits'), number, permit)
    call('SADD', key('permit:' .. permit), number)
    call('SADD', key('called:' .. permit), number)
  end
end

-- End the permit that a job has, if it has one.
local function free_permit(number)
  local permit = call('HGET', key('permits'), number)
  if permit then
    call('HDEL', key('permits'), number)
    call('SREM', key('permit:' .. permit), number)
    call('SREM', key('called:' .. permit), number)
    hand_on(permit)
  end
end

local function id_of(number)
  local blob = call('HGET', key('jobs'), number)
  return blob and id_in(blob) or ''
end

-- Delete the data of a job that is nowhere any more. Its cancel mark goes with it.
local function forget(number, keep_mark)
  if keep_mark ~= '1' and call('EXISTS', key('cancels')) == 1 then
    local id = id_of(number)
    call('HDEL', key('cancels'), id)
    call('ZREM', key('cancel-order'), id)
  end
  call('HDEL', key('jobs'), number)
  call('HDEL', key('claims'), number)
  call('HDEL', key('deaths'), number)
  call('HDEL', key('runs-at'), number)
  call('SREM', key('keyed'), number)
  free_permit(number)
end

-- Remove a job that waits in a queue; returns whether it was there.
local function remove(queue, tenant, number)
  if call('ZREM', place_of(queue, tenant), number) == 0 then
    return false
  end
  left(queue, tenant)
  forget(number, '')
  return true
end

-- The claim of a worker on a job: how often the job was claimed, its score, queue and tenant; nil if it has none.
local function claim_of(holder, number)
  local packed = call('HGET', key('held:' .. holder), number)
  if not packed then
    return nil
  end
  local read, claim = pcall(cmsgpack.unpack, packed)
  if read and type(claim) == 'table' and #claim == 4 then
    return claim
  end
  -- Another program has changed it. Its worker settles the job as any other. If it has to go back, a person may requeue it.
  if call('HEXISTS', key('jobs'), number) == 0 then
    return nil
  end
  return { number_in('claims', number, 0) + 1, score_of(0, number), 'failed', '' }
end

-- Delete a job that the worker has claimed for the given time; returns whether the claim was still valid.
local function drop(holder, number, times, keep_mark)
  local claim = claim_of(holder, number)
  if not claim or tostring(claim[1]) ~= times then
    return false
  end
  call('HDEL', key('held:' .. holder), number)
  forget(number, keep_mark)
  return true
end

-- Give a claimed job back to its queue, at its old place. `died` is the name of the worker if it died with the job.
local function give_back(holder, number, died)
  local claim = claim_of(holder, number)
  if not claim then
    return false
  end
  local times, score, queue, tenant = unpack(claim)
  call('HDEL', key('held:' .. holder), number)
  call('HSET', key('claims'), number, times)
  if died ~= '' then
    call('HSET', key('deaths'), number, (call('HGET', key('deaths'), number) or '') .. died .. '\n')
  end
  free_permit(number)
  declare(queue)
  add(queue, tenant, '', score, number)
  return true
end
