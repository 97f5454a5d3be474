-- Puts jobs that are due into their queues. ARGV: the time, and how many jobs at most.
-- Returns how many there were, and when the next of these is due ('' for never): jobs, unique keys, recurring jobs.

write_in_any_case()
local found = call('ZRANGEBYSCORE', key('later'), '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, number in ipairs(found) do
  local place, blob = take_later(number)
  if blob then
    put(place[1], place[2], place[3], place[4], place[5], blob)
  else
    call('ZREM', key('later'), number)
  end
end

local function first(name)
  return call('ZRANGE', key(name), 0, 0, 'WITHSCORES')[2] or ''
end
return { #found, first('later'), first('keys-due'), first('recurring-due') }
