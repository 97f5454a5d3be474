-- Removes waiting jobs of a queue. ARGV: the queue, the highest number to remove, the maximum number of jobs, '1' to
-- leave jobs with a unique key, and the tenants ('' for jobs without one).
-- Returns the number of removed jobs, '1' if there may be more, and tenant, number and message of each job that was
-- left.

local queue, last, most, leave_keyed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local removed, keyed = 0, {}
for index = 5, #ARGV do
  local tenant, passed = ARGV[index], 0
  while true do
    local numbers = call('ZRANGE', place_of(queue, tenant), passed, passed + 499)
    if #numbers == 0 then
      break
    end
    for _, number in ipairs(numbers) do
      if removed + #keyed >= most then
        return { removed, '1', keyed }
      end
      passed = passed + 1
      if (tonumber(number) or 0) <= last then
        if leave_keyed and call('SISMEMBER', key('keyed'), number) == 1 then
          keyed[#keyed + 1] = { tenant, number, call('HGET', key('jobs'), number) or '' }
        elseif remove(queue, tenant, number) then
          removed, passed = removed + 1, passed - 1
        end
      end
    end
  end
end
return { removed, '0', keyed }
