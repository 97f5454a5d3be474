-- Stores jobs. ARGV: the time, then for each job its queue, tenant, share, priority, '1' if it has a unique key, the
-- instant at which it is due ('' for now), id and message.

local now = tonumber(ARGV[1])
for first = 2, #ARGV, 8 do
  local queue, tenant, share, priority, keyed, run_at, id, blob = unpack(ARGV, first, first + 7)
  if run_at ~= '' and tonumber(run_at) > now then
    put_later(queue, tenant, share, priority, keyed, run_at, id, blob)
  else
    put(queue, tenant, share, priority, keyed, blob)
  end
end
return (#ARGV - 1) / 8
