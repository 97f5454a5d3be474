// Enqueues jobs and reads failed ones with Node's amqplib, from what docs/internals/wire.md says and nothing else.
//
//   node client.js publish URL EXCHANGE QUEUE     five jobs that run and one that fails
//   node client.js read URL QUEUE                 takes all messages there and prints them as JSON

'use strict';

const amqp = require('amqplib');

async function publish(connection, exchange, queue) {
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange(exchange, 'direct', { durable: true });
  await channel.assertQueue(queue, { durable: true });
  await channel.bindQueue(queue, exchange, queue);
  const returned = [];
  channel.on('return', (message) => returned.push(message));

  const enqueue = (job, args, { headers = {}, ...properties } = {}) =>
    channel.publish(exchange, queue, args === undefined ? Buffer.alloc(0) : Buffer.from(JSON.stringify(args)), {
      persistent: true,
      mandatory: true,
      headers: { 'job-class': job, ...headers },
      ...properties,
    });

  enqueue('interop.note', ['positional', 1, 2.5, null, true]);
  enqueue('interop.note', { to: 'grüße@東京.example', count: 3 }, { contentType: 'application/json' });
  enqueue('interop.note', { args: ['both'], kwargs: { loud: true } }, { headers: { arguments: 'both' } });
  enqueue('interop.note', 'single', { messageId: 'chosen-by-node' });
  enqueue('interop.note', undefined, { headers: { id: 'named-in-a-header' } });
  enqueue('interop.explode', [2 ** 40], {
    contentType: 'application/json',
    messageId: 'fails-from-node',
    headers: { 'created-at': 1700000000, 'x-small': 7, 'x-text': 'ünchanged' },
  });

  await channel.waitForConfirms();
  if (returned.length) throw new Error(`${returned.length} messages came back`);
}

async function read(connection, queue) {
  const channel = await connection.createChannel();
  const messages = [];
  for (let message; (message = await channel.get(queue)); ) {
    const { headers, messageId, contentType, deliveryMode } = message.properties;
    messages.push({ headers, id: messageId, content_type: contentType, delivery_mode: deliveryMode, body: message.content.toString() });
    channel.ack(message);
  }
  await channel.close();
  console.log(JSON.stringify(messages));
}

async function main([command, url, ...rest]) {
  const connection = await amqp.connect(url);
  await { publish, read }[command](connection, ...rest);
  await connection.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
