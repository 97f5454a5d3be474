-- The next job of a queue, to run in a batch. ARGV: the worker, the queue, the stride of its tenant, and the number of
-- the job to claim if it is still the next one, or '' to only read it.
-- Returns nothing if no job waits; the worker is then woken for the next one. Reading returns the job's number, the
-- number of its claims, its cancel mark and message. Claiming returns the claimed job, or 'other' if another one is
-- next.

local holder, queue, stride, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if call('EXISTS', key('worker:' .. holder)) == 0 then
  return { 'gone' }
end
local number = call('ZRANGE', key('queue:' .. queue), 0, 0)[1]
if not number then
  local tenant = call('ZRANGE', key('turns:' .. queue), 0, 0)[1]
  number = tenant and call('ZRANGE', place_of(queue, tenant), 0, 0)[1]
end
local blob = number and call('HGET', key('jobs'), number)
if not blob then
  wait_for(holder, queue, 'batch')
  return {}
end
if wanted == '' then
  return { number, tostring(claims_of(number)), try('HGET', 'cancels', id_of(number)) or '', blob }
end
return number == wanted and claim(holder, queue, stride) or { 'other' }
