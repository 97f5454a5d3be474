<?php
// A shop in PHP, with php-amqplib: `composer require php-amqplib/php-amqplib`, or Debian's package php-amqplib.
// docs/guides/languages.md explains it.
//
//   php shop.php enqueue     enqueues a job that a Palermo worker runs
//   php shop.php work        runs the jobs of the queue `thumbnails`, until Ctrl-C

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

require is_file(__DIR__ . '/vendor/autoload.php') ? __DIR__ . '/vendor/autoload.php' : 'PhpAmqpLib/autoload.php';

define('EXCHANGE', getenv('PALERMO_EXCHANGE') ?: 'palermo');

function name_of(string $queue): string
{
    return EXCHANGE === 'palermo' ? $queue : EXCHANGE . ".$queue";
}

function declare_queue(AMQPChannel $channel, string $queue): void
{
    $channel->exchange_declare(EXCHANGE, 'direct', false, true, false);
    $channel->queue_declare(name_of($queue), false, true, false, false);
    $channel->queue_bind(name_of($queue), EXCHANGE, name_of($queue));
}

function publish(AMQPChannel $channel, string $queue, AMQPMessage $message): void
{
    declare_queue($channel, $queue);
    $message->set('delivery_mode', AMQPMessage::DELIVERY_MODE_PERSISTENT);
    $channel->basic_publish($message, EXCHANGE, name_of($queue), true);
    $channel->wait_for_pending_acks_returns(30);
}

function confirming(AMQPStreamConnection $connection): AMQPChannel
{
    $channel = $connection->channel();
    $channel->confirm_select();
    $refuse = fn () => throw new RuntimeException('the broker did not store the message');
    $channel->set_nack_handler($refuse);
    $channel->set_return_listener($refuse);
    return $channel;
}

function enqueue(AMQPStreamConnection $connection): void
{
    publish(confirming($connection), 'mail', new AMQPMessage(json_encode(['ann@example.com']), [
        'content_type' => 'application/json',
        'message_id' => bin2hex(random_bytes(16)),
        'application_headers' => new AMQPTable(['job-class' => 'shop.SendMail', 'queue' => 'mail']),
    ]));
}

function make_thumbnail(string $path): string
{
    if (str_contains($path, 'broken')) {
        throw new RuntimeException("cannot read $path");
    }
    echo "thumbnail of $path\n";
    return "$path.small";
}

function work(AMQPStreamConnection $connection): void
{
    $channel = $connection->channel();
    $failures = confirming($connection);
    declare_queue($channel, 'thumbnails');
    $channel->basic_qos(0, 1, false);
    $run = function (AMQPMessage $message) use ($failures): void {
        [$how, $output] = ['done', null];
        try {
            $body = json_decode($message->getBody(), true, 512, JSON_THROW_ON_ERROR);
            $output = make_thumbnail(...($body['args'] ?? $body));
        } catch (Throwable $error) {
            $how = 'failed';
            fail_job($failures, 'thumbnails', $message, $error);
        }
        if ($message->has('application_headers') && isset($message->get('application_headers')->getNativeData()['workflow'])) {
            report($failures, $message, $how, $output);
        }
        $message->ack();
    };
    $channel->basic_consume(name_of('thumbnails'), '', false, false, false, false, $run);
    $channel->consume();
}

function fail_job(AMQPChannel $channel, string $queue, AMQPMessage $message, Throwable $error): void
{
    $properties = $message->get_properties();
    $headers = $properties['application_headers'] ?? new AMQPTable();
    $known = $headers->getNativeData();
    foreach (array_filter($known, is_float(...)) as $name => $seconds) {
        $headers->set($name, (int) ceil($seconds)); // php-amqplib reads fractions, and cannot write them
    }
    $headers->set('queue', $queue);
    $headers->set('retries', $known['retries'] ?? 0); // stays as it is if the job was requeued before
    $headers->set('exception-class', $error::class);
    $headers->set('exception-message', $error->getMessage());
    $headers->set('stack-trace', (string) $error);
    $headers->set('failed-at', time());
    $headers->set('worker', 'pid:' . getmypid() . '@' . gethostname() . '/worker-1');
    publish($channel, 'failed', new AMQPMessage($message->getBody(), [
        'content_type' => $properties['content_type'] ?? 'application/json',
        'message_id' => $properties['message_id'] ?? $known['id'] ?? bin2hex(random_bytes(16)),
        'application_headers' => $headers,
    ]));
}

function report(AMQPChannel $channel, AMQPMessage $message, string $how, mixed $output): void
{
    $known = $message->get('application_headers')->getNativeData();
    $run = ['workflow' => $known['workflow'], 'step' => $known['workflow-step'], 'how' => $how];
    $run += ['generation' => $known['workflow-generation']];
    if ($how === 'done' && ($known['workflow-output'] ?? false)) {
        $run += ['content_type' => 'application/json', 'value' => base64_encode(json_encode($output))];
    }
    $record = new AMQPMessage(json_encode(['format' => 1, 'end' => ['runs' => [$run]]]), ['delivery_mode' => 2]);
    $channel->basic_publish($record, '', EXCHANGE . '.~workflows', true);
    $channel->wait_for_pending_acks_returns(30);
}

$url = parse_url(getenv('PALERMO_URL') ?: 'amqp://guest:guest@localhost:5672/');
$connection = new AMQPStreamConnection(
    $url['host'],
    $url['port'] ?? 5672,
    rawurldecode($url['user']),
    rawurldecode($url['pass']),
    rawurldecode(substr($url['path'] ?? '/', 1)) ?: '/'
);
['enqueue' => enqueue(...), 'work' => work(...)][$argv[1]]($connection);
$connection->close();
