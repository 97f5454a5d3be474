// A shop in JavaScript, with amqplib: `npm install amqplib`. docs/guides/languages.md explains it.
//
//   node shop.js enqueue     enqueues a job that a Palermo worker runs
//   node shop.js work        runs the jobs of the queue `thumbnails`, until Ctrl-C

'use strict';

const { randomUUID } = require('node:crypto');
const { hostname } = require('node:os');
const amqp = require('amqplib');

const exchange = process.env.PALERMO_EXCHANGE ?? 'palermo';
const nameOf = (queue) => (exchange === 'palermo' ? queue : `${exchange}.${queue}`);

async function declare(channel, queue) {
  await channel.assertExchange(exchange, 'direct', { durable: true });
  await channel.assertQueue(nameOf(queue), { durable: true });
  await channel.bindQueue(nameOf(queue), exchange, nameOf(queue));
}

const returned = [];

async function publish(channel, queue, body, properties) {
  await declare(channel, queue);
  channel.publish(exchange, nameOf(queue), body, { persistent: true, mandatory: true, ...properties });
  await channel.waitForConfirms();
  if (returned.length) throw new Error('the broker did not store the message');
}

async function enqueue(channel) {
  await publish(channel, 'mail', Buffer.from(JSON.stringify(['ann@example.com'])), {
    contentType: 'application/json',
    messageId: randomUUID(),
    headers: { 'job-class': 'shop.SendMail', queue: 'mail' },
  });
}

function makeThumbnail(path) {
  if (path.includes('broken')) throw new Error(`cannot read ${path}`);
  console.log(`thumbnail of ${path}`);
  return `${path}.small`;
}

async function work(channel) {
  await declare(channel, 'thumbnails');
  await channel.prefetch(1);
  await channel.consume(nameOf('thumbnails'), async (message) => {
    let how = 'done', output;
    try {
      const body = JSON.parse(message.content);
      output = makeThumbnail(...(body.args ?? body));
    } catch (error) {
      how = 'failed';
      await fail(channel, 'thumbnails', message, error);
    }
    if (message.properties.headers.workflow) await report(channel, message, how, output);
    channel.ack(message);
  });
}

async function fail(channel, queue, message, error) {
  const { headers, messageId, contentType, contentEncoding } = message.properties;
  await publish(channel, 'failed', message.content, {
    contentType,
    contentEncoding,
    messageId: messageId ?? headers.id ?? randomUUID(),
    headers: {
      retries: 0, // stays as it is if the job was requeued before
      ...headers,
      queue,
      'exception-class': error.name,
      'exception-message': error.message,
      'stack-trace': error.stack,
      'failed-at': Math.floor(Date.now() / 1000),
      worker: `pid:${process.pid}@${hostname()}/worker-1`,
    },
  });
}

async function report(channel, { properties }, how, output) {
  const { workflow, 'workflow-step': step, 'workflow-generation': generation } = properties.headers;
  const run = { workflow, step, generation, how };
  if (how === 'done' && properties.headers['workflow-output']) {
    run.content_type = 'application/json';
    run.value = Buffer.from(JSON.stringify(output ?? null)).toString('base64');
  }
  const body = Buffer.from(JSON.stringify({ format: 1, end: { runs: [run] } }));
  channel.publish('', `${exchange}.~workflows`, body, { persistent: true, mandatory: true });
  await channel.waitForConfirms();
  if (returned.length) throw new Error('the broker did not store the message');
}

async function main([command]) {
  const connection = await amqp.connect(process.env.PALERMO_URL ?? 'amqp://guest:guest@localhost:5672/');
  const channel = await connection.createConfirmChannel();
  channel.on('return', (message) => returned.push(message));
  await { enqueue, work }[command](channel);
  if (command === 'enqueue') await connection.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
