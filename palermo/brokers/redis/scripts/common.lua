-- What all scripts share: the places where jobs wait, and how a job comes into one and leaves it.
-- docs/internals/redis.md has every key. KEYS[1] is the prefix of all of them, `palermo:{exchange}:`.
--
-- A job has a number, which counts all jobs that were ever stored. It is the job's id within Redis, since two jobs may
-- have the same id. A queue is a sorted set of numbers: first by priority, then by number, which is by age.
--
-- An error ends a script, and what it had done stays. So a script reads the keys of all places first, which raises the
-- error for a key of another type, and puts a job where it goes before it takes it from where it was.

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

-- Like `call`, for a key without which jobs go on: what is known of them besides their places and messages. If another
-- program has given it another type, nothing is known and nothing is noted, and `palermo doctor` names the key. Returns
-- nil then.
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

-- The number in a field of a hash; `default` if there is none, or if another program has written something else.
local function number_in(name, field, default)
  return tonumber(try('HGET', name, field) or default) or default
end

-- How often a job that waits was claimed before; 1 if that cannot be known.
local function claims_of(number)
  local found = try('HGET', 'claims', number)
  return found == nil and 1 or tonumber(found or 0) or 0
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

-- Make the queue if need be, before a job comes into it. Raises the error for a key of its places of another type.
local function prepare(queue, tenant)
  declare(queue)
  call('ZCARD', place_of(queue, tenant))
  if tenant ~= '' then
    call('ZCARD', key('turns:' .. queue))
  end
end

-- Note that a job has come into a queue, and have a worker take it.
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

-- Note that a job of the tenant does not wait any more; a tenant without jobs is forgotten.
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

-- Store the message of a new job; returns its number. If another program has set the counter back, or deleted it, the
-- number is the next one that no job has.
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

-- Store a new job that is due later; returns its number.
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

-- The parts of a message; none of one that another program has changed so that it cannot be read. Its job goes on to a
-- worker anyway, which says so: an error here would keep all jobs of its queue waiting.
local function parts_of(blob)
  local read, parts = pcall(cmsgpack.unpack, string.sub(blob, 2))
  return read and type(parts) == 'table' and #parts == 7 and parts or {}
end

-- The id in a message; '' if it cannot be read.
local function id_in(blob)
  local id = parts_of(blob)[1]
  return type(id) == 'string' and id or ''
end

-- The place and the message of a job that is due later; nil if it is not there any more.
local function find_later(number)
  local packed = call('HGET', key('later-places'), number)
  if not packed then
    return nil
  end
  call('ZCARD', key('later'))
  local blob = call('HGET', key('jobs'), number)
  local read, place = pcall(cmsgpack.unpack, packed)
  if not read or type(place) ~= 'table' or #place ~= 6 then
    -- Another program has changed it. The job is not lost: a person may requeue it.
    place = { 'failed', '', '', 0, '', blob and id_in(blob) or '' }
  end
  return place, blob or nil
end

-- Take a job with this place from those that are due later.
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

-- Give a free permit to the job that has waited longest for it, and put that job into its queue.
local function hand_on(permit)
  for _, first in ipairs(try('ZRANGE', 'waiting:' .. permit, 0, 0) or {}) do
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

-- End the permit that a job has, if it has one.
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

-- Delete the data of a job that is nowhere any more. Its cancel mark goes with it.
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
  return { claims_of(number) + 1, score_of(0, number), 'failed', '' }
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
