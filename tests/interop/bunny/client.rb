# Enqueues jobs and reads failed ones with Ruby's bunny, from what docs/internals/wire.md says and nothing else.
#
#   ruby client.rb publish URL EXCHANGE QUEUE     five jobs that run and one that fails
#   ruby client.rb read URL QUEUE                 takes all messages there and prints them as JSON

require "bunny"
require "json"

def publish(connection, exchange_name, queue_name)
  channel = connection.create_channel
  channel.confirm_select
  exchange = channel.direct(exchange_name, durable: true)
  channel.queue(queue_name, durable: true).bind(exchange, routing_key: queue_name)
  returned = 0
  exchange.on_return { returned += 1 }

  enqueue = lambda do |job, body, headers: {}, **properties|
    exchange.publish(body, routing_key: queue_name, persistent: true, mandatory: true,
                           headers: { "job-class" => job }.merge(headers), **properties)
  end

  # bunny labels a message without a content type as application/octet-stream, so each says what it is.
  json = { content_type: "application/json" }
  enqueue.call("interop.note", JSON.generate(["positional", 1, 2.5, nil, true]), **json)
  enqueue.call("interop.note", JSON.generate({ to: "grüße@東京.example", count: 3 }), **json)
  enqueue.call("interop.note", JSON.generate({ args: ["both"], kwargs: { loud: true } }),
               headers: { "arguments" => "both" }, **json)
  enqueue.call("interop.note", JSON.generate("single"), message_id: "chosen-by-ruby", **json)
  enqueue.call("interop.note", "", headers: { "id" => "named-in-a-header" }, **json)
  enqueue.call("interop.explode", JSON.generate([2**40]), message_id: "fails-from-ruby",
               headers: { "created-at" => 1_700_000_000, "x-small" => 7, "x-text" => "ünchanged" }, **json)

  raise "not confirmed" unless channel.wait_for_confirms
  raise "#{returned} messages came back" unless returned.zero?
end

def read(connection, queue_name)
  queue = connection.create_channel.queue(queue_name, passive: true)
  messages = []
  loop do
    delivery, properties, body = queue.pop(manual_ack: true)
    break if delivery.nil?

    messages << { headers: properties.headers, id: properties.message_id, content_type: properties.content_type,
                  delivery_mode: properties.delivery_mode, body: body.dup.force_encoding("UTF-8") }
    delivery.channel.ack(delivery.delivery_tag)
  end
  puts JSON.generate(messages)
end

command, url, *rest = ARGV
connection = Bunny.new(url, automatically_recover: false)
connection.start
send(command, connection, *rest)
connection.close
