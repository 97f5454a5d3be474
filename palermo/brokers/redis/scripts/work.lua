-- Deletes a worker's finished jobs, and claims the next ones for it.
-- ARGV: the worker, the version of the queues that it has read, the number of jobs to claim, the stride of tenants, the
-- number of jobs that it has received with wake-up messages, the number of finished jobs, the number and claim of each,
-- and the queues to serve in order.
-- Returns 'gone' if the worker counts as dead. Otherwise returns how many of the finished jobs were still its own, the
-- version of the queues, and the claimed jobs. If the version differs, nothing was claimed.

local holder, version, wanted, stride = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local given, done = tonumber(ARGV[5]), tonumber(ARGV[6])
local worker = key('worker:' .. holder)
if call('EXISTS', worker) == 0 then
  return { 'gone' }
end

write_in_any_case()
local ours = 0
for index = 7, 5 + 2 * done, 2 do
  if drop(holder, ARGV[index], ARGV[index + 1], '') then
    ours = ours + 1
  end
end

local current = call('GET', key('version')) or '0'
if wanted > 0 and current ~= version then
  return { 'old', ours, current }
end

-- A job that is on its way to the worker takes one of the slots.
wanted = wanted - (number_in('worker:' .. holder, 'given', 0) - given)
local queues = 7 + 2 * done
local claimed = {}
local index = queues
while #claimed < wanted and index <= #ARGV do
  local job = claim(holder, ARGV[index], stride)
  if job then
    claimed[#claimed + 1] = job
  else
    index = index + 1
  end
end

if #claimed < wanted then
  for each = queues, #ARGV do
    wait_for(holder, ARGV[each], current)
  end
elseif call('HEXISTS', worker, 'idle') == 1 then
  -- It was woken, perhaps for a job that another idle worker must now take.
  for each = queues, #ARGV do
    try('SREM', 'idle:' .. ARGV[each], holder)
  end
  call('HDEL', worker, 'idle')
  for each = queues, #ARGV do
    local queue = ARGV[each]
    if call('EXISTS', key('idle:' .. queue)) == 1
        and (call('EXISTS', key('queue:' .. queue)) == 1 or call('EXISTS', key('turns:' .. queue)) == 1) then
      wake(queue)
    end
  end
end
return { 'ok', ours, current, claimed }
