-- Makes all changes if every condition holds, otherwise none. ARGV[1]: conditions, changes and the time, packed.
-- Returns 0 and the result of each change, or the number of the first condition that failed.

local conditions, changes, now = unpack(cmsgpack.unpack(ARGV[1]))
local last = nil

local holds = {
  -- The worker's claim on a job is still valid.
  held = function(holder, number, times)
    local claim = claim_of(holder, number)
    return claim and tostring(claim[1]) == times
  end,
  -- The field of a hash has this value; false for a missing field.
  field = function(name, field, value)
    return call('HGET', key(name), field) == value
  end,
  -- The job waits in this place.
  waits = function(queue, tenant, number)
    return call('ZSCORE', place_of(queue, tenant), number) ~= false
  end,
  -- The job is still scheduled.
  scheduled = function(number)
    return find_later(number) ~= nil
  end,
  -- This number of jobs have the permit.
  running = function(permit, size)
    return call('SCARD', key('permit:' .. permit)) == size
  end,
}

local function store(job)
  local queue, tenant, share, priority, keyed, run_at, id, blob = unpack(job)
  if run_at ~= '' and tonumber(run_at) > now then
    return put_later(queue, tenant, share, priority, keyed, run_at, id, blob)
  end
  return put(queue, tenant, share, priority, keyed, blob)
end

-- Set when a state of a table is due; false for never.
local function set_due(name, field, due)
  if due then
    call('ZADD', key(name .. '-due'), due, field)
    call('PUBLISH', key('bell:due'), '')
  else
    call('ZREM', key(name .. '-due'), field)
  end
end

local make = {
  drop = function(holder, number, times, keep_mark)
    drop(holder, number, times, keep_mark)
  end,
  -- Replace the message of a claimed job.
  save = function(number, job)
    call('HSET', key('jobs'), number, job[8])
  end,
  release = function(holder, number)
    release(holder, number, '')
  end,
  put = function(job)
    last = store(job)
  end,
  -- Remove a waiting job if it still waits, and store another in its place.
  remove = function(queue, tenant, number, job)
    if not holds.waits(queue, tenant, number) then
      return 0
    end
    write_in_any_case()
    if job then
      store(job)
    end
    remove(queue, tenant, number)
    return 1
  end,
  -- The same for a scheduled job.
  remove_later = function(number, job)
    local place = find_later(number)
    if not place then
      return 0
    end
    write_in_any_case()
    if job then
      store(job)
    end
    take_later(number, place)
    return 1
  end,
  -- Set the state of a name, and for a recurring job or a workflow when it is due.
  set = function(name, field, value, due)
    call('HSET', key(name), field, value)
    if due ~= nil then
      set_due(name, field, due)
    end
    if name == 'pauses' then
      queues_changed()
    end
  end,
  unset = function(name, field)
    call('HDEL', key(name), field)
    if name == 'recurring' or name == 'flows' then
      set_due(name, field, false)
    end
    if name == 'pauses' then
      queues_changed()
    end
  end,
  -- Set the state of a unique key; false to delete it.
  key = function(name, state, due, holder_before, holder)
    if holder_before then
      try('ZREM', 'key-holders', holder_before .. '\0' .. name)
    end
    if state then
      call('HSET', key('keys'), name, state)
    else
      call('HDEL', key('keys'), name)
    end
    if holder then
      try('ZADD', 'key-holders', 0, holder .. '\0' .. name)
    end
    set_due('keys', name, due)
  end,
  -- Store arguments or an output of a workflow step.
  flow_data = function(workflow, name, data)
    call('HSET', key('flow:' .. workflow), name, data)
  end,
  forget_flow = function(workflow)
    call('UNLINK', key('flow:' .. workflow))
  end,
  permit = function(number, permit)
    call('HSET', key('permits'), number, permit)
    call('SADD', key('permit:' .. permit), number)
  end,
  -- Delete a limited key if its state is unchanged and no job has or awaits its permit.
  forget_limit = function(name, state)
    if call('HGET', key('limits'), name) == state and call('EXISTS', key('permit:' .. name), key('waiting:' .. name)) == 0 then
      return call('HDEL', key('limits'), name)
    end
    return 0
  end,
  -- Make the job that was stored last wait for a permit.
  wait = function(permit)
    try('HSET', 'waits', last, permit)
    try('ZADD', 'waiting:' .. permit, last, last)
  end,
  declare = function(queue)
    declare(queue)
  end,
  -- Mark jobs as cancelled. Only the newest marks are kept, because a job that never arrives never removes its mark.
  cancel = function(mark, most, ids)
    for _, id in ipairs(ids) do
      call('HSET', key('cancels'), id, mark)
      call('ZADD', key('cancel-order'), call('INCR', key('number')), id)
    end
    local many = call('ZCARD', key('cancel-order')) - most
    if many > 0 then
      local popped = call('ZPOPMIN', key('cancel-order'), many)
      for index = 1, #popped, 2 do
        call('HDEL', key('cancels'), popped[index])
      end
    end
  end,
  restore = function(ids)
    for _, id in ipairs(ids) do
      call('HDEL', key('cancels'), id)
      call('ZREM', key('cancel-order'), id)
    end
  end,
  -- Append an entry to a log. `size` is the total size of all entries so far, including removed ones.
  append = function(name, blob, topic, at)
    local size = call('INCRBY', key(name .. '-bytes'), #blob)
    call('XADD', key(name), '*', 'blob', blob, 'size', size, 'topic', topic, 'at', at)
  end,
  -- Record that a group should get the kept events up to the newest one, and has got none of them yet.
  start_replay = function(name, group)
    local newest = call('XREVRANGE', key(name), '+', '-', 'COUNT', 1)[1]
    if newest then
      local milliseconds, number = string.match(newest[1], '(%d+)-(%d+)')
      call('HSET', key('replays'), group, string.format('0 %s%06d', milliseconds, number)) -- place_of in store.py
    end
  end,
  -- Remove the entries of a log that exceed its age or its size.
  trim = function(name, oldest, most)
    call('XTRIM', key(name), 'MINID', string.format('%.0f', oldest * 1000))
    local from = tonumber(call('GET', key(name .. '-bytes')) or 0) - most
    if from <= 0 then
      return
    end
    while true do
      local entries = call('XRANGE', key(name), '-', '+', 'COUNT', 10)
      if #entries == 0 then
        return
      end
      for _, entry in ipairs(entries) do
        local upto = tonumber(entry[2][4])  -- missing in another program's entry
        if upto and upto - #entry[2][2] >= from then
          call('XTRIM', key(name), 'MINID', entry[1])
          return
        end
      end
      for _, entry in ipairs(entries) do
        call('XDEL', key(name), entry[1])
      end
    end
  end,
  -- Store a job in a queue of its own, and delete both again, invisible to others.
  try_out = function(job)
    local queue, blob = job[1], job[8]
    local number = store_message(blob)
    call('ZADD', key('queue:' .. queue), 0, number)
    local found = call('ZPOPMIN', key('queue:' .. queue))[1]
    return found and call('HDEL', key('jobs'), found) or 0
  end,
  publish = function(channel, text)
    call('PUBLISH', key(channel), text)
  end,
}

for number, condition in ipairs(conditions) do
  if not holds[condition[1]](unpack(condition, 2)) then
    return { number }
  end
end
for _, condition in ipairs(conditions) do
  if condition[1] == 'held' then
    write_in_any_case()
  end
end
local answers = { 0 }
for number, change in ipairs(changes) do
  answers[number + 1] = make[change[1]](unpack(change, 2)) or 0
end
return answers
