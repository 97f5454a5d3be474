# A shop in Ruby, with bunny: `gem install bunny`. docs/guides/languages.md explains it.
#
#   ruby shop.rb enqueue     enqueues a job that a Palermo worker runs
#   ruby shop.rb work        runs the jobs of the queue `thumbnails`, until Ctrl-C

require "bunny"
require "json"
require "securerandom"
require "socket"

$stdout.sync = true
EXCHANGE = ENV.fetch("PALERMO_EXCHANGE", "palermo")

def name_of(queue) = EXCHANGE == "palermo" ? queue : "#{EXCHANGE}.#{queue}"

def declare(channel, queue)
  channel.direct(EXCHANGE, durable: true)
  channel.queue(name_of(queue), durable: true).bind(EXCHANGE, routing_key: name_of(queue))
end

def publish(channel, queue, body, **properties)
  declare(channel, queue)
  exchange = channel.direct(EXCHANGE, durable: true)
  returned = 0
  exchange.on_return { returned += 1 }
  exchange.publish(body, routing_key: name_of(queue), persistent: true, mandatory: true, **properties)
  raise "the broker did not store the message" unless channel.wait_for_confirms && returned.zero?
end

def enqueue(connection)
  channel = connection.create_channel
  channel.confirm_select
  publish(channel, "mail", JSON.generate(["ann@example.com"]),
          content_type: "application/json", message_id: SecureRandom.uuid,
          headers: { "job-class" => "shop.SendMail", "queue" => "mail" })
end

def make_thumbnail(path)
  raise ArgumentError, "cannot read #{path}" if path.include?("broken")

  puts "thumbnail of #{path}"
  "#{path}.small"
end

def work(connection)
  channel, failures = connection.create_channel, connection.create_channel
  failures.confirm_select
  channel.prefetch(1)
  deliveries = Thread::Queue.new # bunny hides the errors of a block that it calls itself
  declare(channel, "thumbnails").subscribe(manual_ack: true) { |*delivery| deliveries << delivery }
  loop do
    delivery, properties, body = deliveries.pop
    how, output = "done", nil
    begin
      call = JSON.parse(body)
      output = make_thumbnail(*(call.is_a?(Hash) ? call["args"] : call))
    rescue => error
      how = "failed"
      fail_job(failures, "thumbnails", properties, body, error)
    end
    report(failures, properties, how, output) if (properties.headers || {})["workflow"]
    channel.ack(delivery.delivery_tag)
  end
end

def fail_job(channel, queue, properties, body, error)
  headers = properties.headers || {}
  publish(channel, "failed", body,
          content_type: properties.content_type, content_encoding: properties.content_encoding,
          message_id: properties.message_id || headers["id"] || SecureRandom.uuid,
          headers: {
            "retries" => 0, # stays as it is if the job was requeued before
            **headers,
            "queue" => queue,
            "exception-class" => error.class.name,
            "exception-message" => error.message,
            "stack-trace" => error.full_message(highlight: false),
            "failed-at" => Time.now.to_i,
            "worker" => "pid:#{Process.pid}@#{Socket.gethostname}/worker-1"
          })
end

def report(channel, properties, how, output)
  workflow, step, generation = properties.headers.values_at("workflow", "workflow-step", "workflow-generation")
  run = { workflow:, step:, generation:, how: }
  if how == "done" && properties.headers["workflow-output"]
    run.update(content_type: "application/json", value: [JSON.generate(output)].pack("m0"))
  end
  channel.default_exchange.publish(JSON.generate({ format: 1, end: { runs: [run] } }),
                                   routing_key: "#{EXCHANGE}.~workflows", persistent: true)
  raise "the broker did not store the message" unless channel.wait_for_confirms
end

connection = Bunny.new(ENV.fetch("PALERMO_URL", "amqp://guest:guest@localhost:5672/"))
connection.start
send(ARGV.fetch(0), connection)
connection.close
