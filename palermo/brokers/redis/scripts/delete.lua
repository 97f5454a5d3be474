-- Deletes a queue in which no job waits. ARGV: the queue. Returns 0 if jobs wait.

local queue = ARGV[1]
if call('EXISTS', key('queue:' .. queue)) == 1 or call('HEXISTS', key('tenant-jobs'), queue) == 1 then
  return 0
end
call('HDEL', key('queues'), queue)
call('HDEL', key('marks'), queue)
call('DEL', key('idle:' .. queue))
queues_changed()
return 1
