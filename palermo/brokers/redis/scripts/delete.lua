-- Deletes a queue in which no job waits. ARGV: the queue. Returns 0 if jobs wait.

local queue = ARGV[1]
if call('EXISTS', key('queue:' .. queue), key('turns:' .. queue)) > 0 then
  return 0
end
call('HDEL', key('queues'), queue)
try('HDEL', 'marks', queue)
try('HDEL', 'tenant-jobs', queue)
call('DEL', key('idle:' .. queue))
queues_changed()
return 1
