-- Shared by all scripts: the places where jobs wait, and how a job enters and leaves one.
-- docs/internals/redis.md lists all keys. KEYS[1] is their prefix, `palermo:{exchange}:`.
--
-- A job's number counts all jobs that were ever stored. It identifies the job within Redis, since several jobs may have
-- the same id. A queue is a sorted set of numbers, by priority and then by number, which means by age.
--
-- A script that ends with an error keeps the changes it has made. So a script first reads the keys of all places, which
-- raises the error for a key of another type, and puts a job into its new place before removing it from the old one.

local call = redis.call
local PREFIX = KEYS[1]

-- The priority of a job that has already waited for its permit, and the difference of two priorities in a score.
local FRONT, STEP = 10, 2 ^ 44

local function key(name)
  return PREFIX .. name
end

-- Let this script write even if the memory is full. Redis refuses only a script's first write, and only if that may
-- need memory, which deleting doesn't. Workers must continue then, since they free memory.
local function write_in_any_case()
  call('DEL', key('nothing'))
end

-- Like `call`, for a key that isn't essential. If another program has replaced the key by one of another type, returns
-- nil and does nothing; `palermo doctor` reports the key.
local function try(command, name, ...)
  local answer = redis.pcall(command, key(name), ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then
    error(answer.err, 0)
  end
  return nil
end

-- The number in a field of a hash; `default` if it is missing, or isn't a number because another program wrote it.
local function number_in(name, field, default)
  return tonumber(try('HGET', name, field) or default) or default
end

-- How often a waiting job was claimed before; 1 if that is unknown.
local function claims_of(number)
  local found = try('HGET', 'claims', number)
  return found == nil and 1 or tonumber(found or 0) or 0
end

local function server_time()
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- The key of the place where a queue's jobs of this tenant wait; '' for jobs without a tenant.
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

-- Notify all consumers that the queues, or their pauses, have changed.
local function queues_changed()
  call('INCR', key('version'))
  call('PUBLISH', key('bell:queues'), '')
end

local function declare(queue)
  if call('HSETNX', key('queues'), queue, 1) == 1 then
    queues_changed()
  end
end

-- Only in publish.lua: gives the next job of a queue to an idle worker; returns whether it did.
local hand_over

-- Wake one idle worker that serves the queue. Skips workers that have died, or that got a job from another queue.
local function wake(queue)
  local holder = try('SPOP', 'idle:' .. queue)
  while holder do
    local idle = try('HGET', 'worker:' .. holder, 'idle')
    if idle and hand_over and hand_over(holder, queue, idle) then
      return
    end
    if idle and call('PUBLISH', key('wake:' .. holder), '') > 0 then
      return
    end
    holder = try('SPOP', 'idle:' .. queue)
  end
end

-- Create the queue if necessary, before a job enters it. Raises an error if one of its places is a key of another type.
local function prepare(queue, tenant)
  declare(queue)
  call('ZCARD', place_of(queue, tenant))
  if tenant ~= '' then
    call('ZCARD', key('turns:' .. queue))
  end
end

-- Record that a job has entered a queue, and wake a worker for it.
local function came(queue, tenant, share)
  if tenant ~= '' then
    try('HINCRBY', 'tenant-jobs', queue, 1)
    if share ~= '' then
      try('HSET', 'shares:' .. queue, tenant, share)
    end
    if not call('ZSCORE', key('turns:' .. queue), tenant) then
      local own = tonumber(share ~= '' and share or number_in('shares:' .. queue, tenant, 1))
      call('ZADD', key('turns:' .. queue), number_in('marks', queue, 0) + 1 / (own or 1), tenant)
    end
  end
  wake(queue)
end

-- Record that a job of the tenant has left the queue. A tenant without jobs is deleted.
local function left(queue, tenant)
  if tenant == '' then
    return
  end
  if (try('HINCRBY', 'tenant-jobs', queue, -1) or 0) <= 0 then
    try('HDEL', 'tenant-jobs', queue)
  end
  if call('EXISTS', place_of(queue, tenant)) == 0 then
    call('ZREM', key('turns:' .. queue), tenant)
    try('HDEL', 'shares:' .. queue, tenant)
  end
end

-- Store the message of a new job; returns its number. If another program has reset or deleted the counter, this is the
-- next unused number.
local function store_message(blob)
  local number, step = call('INCR', key('number')), 1
  while call('HSETNX', key('jobs'), number, blob) == 0 do
    step = 2 * step
    number = call('INCRBY', key('number'), step)
  end
  return number
end

-- Store a new job in a queue; returns its number.
local function put(queue, tenant, share, priority, keyed, blob)
  if tonumber(priority) >= FRONT then
    tenant = ''
  end
  prepare(queue, tenant)
  local number = store_message(blob)
  if keyed == '1' then
    try('SADD', 'keyed', number)
  end
  call('ZADD', place_of(queue, tenant), score_of(priority, number), number)
  came(queue, tenant, share)
  return number
end

-- Store a new scheduled job; returns its number.
local function put_later(queue, tenant, share, priority, keyed, run_at, id, blob)
  call('ZCARD', key('later'))
  call('HLEN', key('later-places'))
  local number = store_message(blob)
  call('HSET', key('later-places'), number, cmsgpack.pack({ queue, tenant, share, priority, keyed, id }))
  try('ZADD', 'later-ids', 0, id .. '\0' .. string.format('%.0f', number))
  call('ZADD', key('later'), run_at, number)
  if call('ZRANGE', key('later'), 0, 0)[1] == string.format('%.0f', number) then
    call('PUBLISH', key('bell:due'), '')
  end
  return number
end

-- The parts of a message; empty if another program has made it unreadable. A worker gets its job anyway and reports
-- that, since an error here would block all jobs of the queue.
local function parts_of(blob)
  local read, parts = pcall(cmsgpack.unpack, blob)
  return read and type(parts) == 'table' and #parts == 6 and parts or {}
end

-- The id in a message; '' if it cannot be read.
local function id_in(blob)
  local id = parts_of(blob)[1]
  return type(id) == 'string' and id or ''
end

-- The place and the message of a scheduled job; nil if it no longer exists.
local function find_later(number)
  local packed = call('HGET', key('later-places'), number)
  if not packed then
    return nil
  end
  call('ZCARD', key('later'))
  local blob = call('HGET', key('jobs'), number)
  local read, place = pcall(cmsgpack.unpack, packed)
  if not read or type(place) ~= 'table' or #place ~= 6 then
    -- Unreadable because of another program. An operator can requeue the job.
    place = { 'failed', '', '', 0, '', blob and id_in(blob) or '' }
  end
  return place, blob or nil
end

-- Remove a job with this place from the scheduled ones.
local function take_later(number, place)
  call('ZREM', key('later'), number)
  try('ZREM', 'later-ids', place[6] .. '\0' .. number)
  call('HDEL', key('later-places'), number)
  call('HDEL', key('jobs'), number)
  local permit = try('HGET', 'waits', number)
  if permit then
    try('HDEL', 'waits', number)
    try('ZREM', 'waiting:' .. permit, number)
  end
end

-- Whether fewer jobs have this permit than the latest limit of its key allows.
local function is_free(permit)
  local read, state = pcall(cjson.decode, try('HGET', 'limits', permit) or '')
  local limit = read and type(state) == 'table' and tonumber(state.limit)
  return not limit or (try('SCARD', 'permit:' .. permit) or 0) < limit
end

-- Give a free permit to the job that has waited longest for it, and put that job into its queue.
local function hand_on(permit)
  for _, first in ipairs(is_free(permit) and try('ZRANGE', 'waiting:' .. permit, 0, 0) or {}) do
    local place, blob = find_later(first)
    if blob then
      local number = put(place[1], '', '', FRONT, place[5], blob)
      try('HSET', 'permits', number, permit)
      try('SADD', 'permit:' .. permit, number)
      try('SADD', 'called:' .. permit, number)
    end
    if place then
      take_later(first, place)
    end
    call('ZREM', key('waiting:' .. permit), first)
  end
end

-- Release the permit of a job, if it has one.
local function free_permit(number)
  local permit = try('HGET', 'permits', number)
  if permit then
    try('HDEL', 'permits', number)
    try('SREM', 'permit:' .. permit, number)
    try('SREM', 'called:' .. permit, number)
    hand_on(permit)
  end
end

local function id_of(number)
  local blob = call('HGET', key('jobs'), number)
  return blob and id_in(blob) or ''
end

-- Delete the data of a job that has left all places, with its cancel mark.
local function forget(number, keep_mark)
  if keep_mark ~= '1' and call('EXISTS', key('cancels')) == 1 then
    local id = id_of(number)
    try('HDEL', 'cancels', id)
    try('ZREM', 'cancel-order', id)
  end
  call('HDEL', key('jobs'), number)
  try('HDEL', 'claims', number)
  try('HDEL', 'deaths', number)
  try('HDEL', 'runs-at', number)
  try('SREM', 'keyed', number)
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

-- A worker's claim on a job: how often the job was claimed, its score, queue and tenant; nil without a claim.
local function claim_of(holder, number)
  local packed = call('HGET', key('held:' .. holder), number)
  if not packed then
    return nil
  end
  local read, claim = pcall(cmsgpack.unpack, packed)
  if read and type(claim) == 'table' and #claim == 4 then
    return claim
  end
  -- Unreadable because of another program. The worker can settle the job; if it is released, an operator can requeue
  -- it.
  if call('HEXISTS', key('jobs'), number) == 0 then
    return nil
  end
  return { claims_of(number) + 1, score_of(0, number), 'failed', '' }
end

-- Delete a job if the worker's claim with this number is still valid; returns whether it was.
local function drop(holder, number, times, keep_mark)
  local claim = claim_of(holder, number)
  if not claim or tostring(claim[1]) ~= times then
    return false
  end
  call('HDEL', key('held:' .. holder), number)
  forget(number, keep_mark)
  return true
end

-- Release a claimed job to its old place in its queue. `died` is the worker's name if it died while running the job.
local function release(holder, number, died)
  local claim = claim_of(holder, number)
  if not claim then
    return false
  end
  local times, score, queue, tenant = unpack(claim)
  prepare(queue, tenant)
  call('ZADD', place_of(queue, tenant), score, number)
  call('HDEL', key('held:' .. holder), number)
  try('HSET', 'claims', number, times)
  if died ~= '' then
    try('HSET', 'deaths', number, (try('HGET', 'deaths', number) or '') .. died .. '\n')
  end
  free_permit(number)
  came(queue, tenant, '')
  return true
end
