-- Moves due jobs to their queues. ARGV: the time, and the maximum number of jobs.
-- Returns the error that kept a job from its queue ('' for none), and when the next of each is due ('' for never):
-- jobs, unique keys, recurring jobs, workflows.

-- Seconds until the next attempt after such an error.
local RETRY_AFTER = 60

write_in_any_case()
local problem = ''
local found = call('ZRANGEBYSCORE', key('later'), '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, number in ipairs(found) do
  local place, blob = find_later(number)
  local done, why = true, nil
  if blob then
    done, why = pcall(put, place[1], place[2], place[3], place[4], place[5], blob)
  end
  if not done then
    problem = type(why) == 'table' and why.err or tostring(why)
    call('ZADD', key('later'), tonumber(ARGV[1]) + RETRY_AFTER, number)
  elseif place then
    take_later(number, place)
  else
    call('ZREM', key('later'), number)
  end
end

local function first(name)
  return call('ZRANGE', key(name), 0, 0, 'WITHSCORES')[2] or ''
end
return { problem, first('later'), first('keys-due'), first('recurring-due'), first('flows-due') }
