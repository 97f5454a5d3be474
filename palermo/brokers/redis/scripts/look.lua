-- Only reads. ARGV[1] is one of these:
--   queues                                      queues with numbers of waiting jobs; each worker's selection and jobs
--   page QUEUE OFFSET LIMIT NEWEST BODY         jobs of a queue, with at most BODY bytes of each body
--   step QUEUE TENANT AFTER LAST COUNT BYTES    the next jobs of a place, for a sweep
--   extent QUEUE                                whether it exists, the newest number, the number of jobs, the tenants
--   tenants QUEUE                               the tenants of a queue, with their waiting jobs and shares
--   limits KEY…                                 for each limited key: jobs that run, have an offered permit, and wait
--   find CURSOR BEGINNINGS IDS…                 some of the jobs with these ids or prefixes; the next cursor
--   place QUEUE TENANT NUMBER                   whether a job is scheduled, waiting or claimed; its queue or worker
--   newest LOG COUNT                            the id of the oldest of the last COUNT entries of a log
--   workers                                     all workers, with their reports and the ends of their leases

local what, queue = ARGV[1], ARGV[2]

local function count(name)
  return call('ZCARD', key('queue:' .. name)) + number_in('tenant-jobs', name, 0)
end

local function workers()
  local found, leases = {}, call('ZRANGE', key('leases'), 0, -1, 'WITHSCORES')
  for index = 1, #leases, 2 do
    local worker = try('HMGET', 'worker:' .. leases[index], 'tag', 'selection', 'report') or { false, false, false }
    local held = {}
    for _, packed in ipairs(try('HVALS', 'held:' .. leases[index]) or {}) do
      local read, claim = pcall(cmsgpack.unpack, packed)
      if read and type(claim) == 'table' and type(claim[3]) == 'string' then
        held[#held + 1] = claim[3]
      end
    end
    found[#found + 1] = { leases[index + 1], worker[1], worker[2], worker[3], held }
  end
  return found
end

-- The message, with at most this many bytes of its body.
local function cut(blob, most)
  if #blob <= most then
    return blob
  end
  local parts = parts_of(blob)
  if type(parts[6]) ~= 'string' or #parts[6] <= most then
    return blob
  end
  parts[6] = string.sub(parts[6], 1, most)
  return cmsgpack.pack(parts)
end

-- Whether the id in a message is in ARGV, or starts with a text in ARGV.
local function wanted(blob)
  local id = nil
  for index = 4, #ARGV do
    local text = ARGV[index]
    -- The id is near the start, so most messages need not be unpacked.
    if string.find(string.sub(blob, 1, 600), text, 1, true) then
      id = id or id_in(blob)
      if id == text or ARGV[3] == '1' and string.sub(id, 1, #text) == text then
        return true
      end
    end
  end
  return false
end

local looks = {
  queues = function()
    local names = {}
    for _, name in ipairs(call('HKEYS', key('queues'))) do
      names[#names + 1] = { name, count(name) }
    end
    return { tostring(server_time()), names, call('HKEYS', key('pauses')), workers() }
  end,
  workers = function()
    local time = call('TIME')
    return { time[1] .. '.' .. string.format('%06d', time[2]), workers() }
  end,
  page = function()
    local offset, limit, newest, most = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
    local places = { key('queue:' .. queue) }
    if call('EXISTS', key('turns:' .. queue)) == 1 and offset + limit > call('ZCARD', places[1]) or newest then
      for _, tenant in ipairs(call('ZRANGE', key('turns:' .. queue), 0, -1)) do
        table.insert(places, newest and 1 or #places + 1, place_of(queue, tenant))
      end
    end
    local jobs = {}
    for _, place in ipairs(places) do
      local size = call('ZCARD', place)
      if offset >= size then
        offset = offset - size
      elseif #jobs < limit then
        local numbers = call(newest and 'ZREVRANGE' or 'ZRANGE', place, offset, offset + limit - #jobs - 1)
        offset = 0
        for _, number in ipairs(numbers) do
          local blob = call('HGET', key('jobs'), number)
          if blob then
            jobs[#jobs + 1] = cut(blob, most)
          end
        end
      end
    end
    return { call('HEXISTS', key('queues'), queue), count(queue), jobs }
  end,
  step = function()
    local after, last, most, bytes = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
    local jobs, size, reached = {}, 0, after
    local found = call('ZRANGEBYSCORE', place_of(queue, ARGV[3]), '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    for index = 1, #found, 2 do
      reached = found[index + 1]
      local blob = call('HGET', key('jobs'), found[index])
      if blob and tonumber(found[index]) <= last then
        jobs[#jobs + 1] = { found[index], blob }
        size = size + #blob
      end
      if size > bytes then
        break
      end
    end
    return { #found, reached, jobs }
  end,
  find = function()
    local cursor, jobs, read = ARGV[2], {}, 0
    repeat
      local page = call('HSCAN', key('jobs'), cursor, 'COUNT', 100)
      cursor = page[1]
      for index = 1, #page[2], 2 do
        local blob = page[2][index + 1]
        read = read + 500 + #blob
        if wanted(blob) then
          jobs[#jobs + 1] = { page[2][index], blob }
        end
      end
    until cursor == '0' or read > 1000000
    return { cursor, jobs }
  end,
  place = function()
    local tenant, number = ARGV[3], ARGV[4]
    if call('HEXISTS', key('later-places'), number) == 1 then
      return { 'later', '' }
    end
    for _, name in ipairs({ queue, 'failed', 'failed:' .. queue }) do
      if call('ZSCORE', key('queue:' .. name), number) then
        return { 'waits', name }
      end
    end
    if tenant ~= '' and call('ZSCORE', place_of(queue, tenant), number) then
      return { 'waits', queue }
    end
    for _, holder in ipairs(call('ZRANGE', key('leases'), 0, -1)) do
      if try('HEXISTS', 'held:' .. holder, number) == 1 then
        return { 'held', try('HGET', 'worker:' .. holder, 'tag') or '' }
      end
    end
    return { '', '' }
  end,
  newest = function()
    local found = call('XREVRANGE', key(ARGV[2]), '+', '-', 'COUNT', ARGV[3])
    return #found > 0 and found[#found][1] or ''
  end,
  extent = function()
    local tenants = call('ZRANGE', key('turns:' .. queue), 0, -1)
    return { call('HEXISTS', key('queues'), queue), call('GET', key('number')) or '0', count(queue), tenants }
  end,
  tenants = function()
    local found = {}
    for _, tenant in ipairs(call('ZRANGE', key('turns:' .. queue), 0, -1)) do
      local share = try('HGET', 'shares:' .. queue, tenant) or '1'
      found[#found + 1] = { tenant, call('ZCARD', place_of(queue, tenant)), share }
    end
    return found
  end,
  limits = function()
    local found = {}
    for index = 2, #ARGV do
      local name = ARGV[index]
      local permits, called = call('SCARD', key('permit:' .. name)), call('SCARD', key('called:' .. name))
      found[index - 1] = { permits - called, called, call('ZCARD', key('waiting:' .. name)) }
    end
    return found
  end,
}
return looks[what]()
