<?php
// Enqueues jobs and reads failed ones with php-amqplib, from what docs/internals/wire.md says and nothing else.
//
//   php client.php publish URL EXCHANGE QUEUE     five jobs that run and one that fails
//   php client.php read URL QUEUE                 takes all messages there and prints them as JSON

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

require 'PhpAmqpLib/autoload.php';

function publish(AMQPStreamConnection $connection, string $exchange, string $queue): void
{
    $channel = $connection->channel();
    $channel->confirm_select();
    $channel->exchange_declare($exchange, 'direct', false, true, false);
    $channel->queue_declare($queue, false, true, false, false);
    $channel->queue_bind($queue, $exchange, $queue);
    $refuse = fn () => throw new RuntimeException('a message came back');
    $channel->set_nack_handler($refuse);
    $channel->set_return_listener($refuse);

    $enqueue = function (string $job, string $body, array $properties = [], array $headers = []) use ($channel, $exchange, $queue): void {
        $message = new AMQPMessage($body, [
            'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT,
            'application_headers' => new AMQPTable(['job-class' => $job, ...$headers]),
            ...$properties,
        ]);
        $channel->basic_publish($message, $exchange, $queue, true);
    };

    $json = ['content_type' => 'application/json'];
    $enqueue('interop.note', '["positional", 1, 2.5, null, true]', $json);
    $enqueue('interop.note', json_encode(['to' => 'grüße@東京.example', 'count' => 3]), $json);
    $enqueue('interop.note', json_encode(['args' => ['both'], 'kwargs' => ['loud' => true]]), $json, ['arguments' => 'both']);
    $enqueue('interop.note', json_encode('single'), [...$json, 'message_id' => 'chosen-by-php']);
    $enqueue('interop.note', '', $json, ['id' => 'named-in-a-header']);
    $enqueue(
        'interop.explode',
        json_encode([2 ** 40]),
        [...$json, 'message_id' => 'fails-from-php'],
        ['created-at' => 1_700_000_000, 'x-small' => 7, 'x-text' => 'ünchanged'],
    );

    $channel->wait_for_pending_acks_returns(60);
}

function read(AMQPStreamConnection $connection, string $queue): void
{
    $channel = $connection->channel();
    $messages = [];
    while ($message = $channel->basic_get($queue)) {
        $properties = $message->get_properties();
        $messages[] = [
            'headers' => $properties['application_headers']->getNativeData(),
            'id' => $properties['message_id'],
            'content_type' => $properties['content_type'],
            'delivery_mode' => $properties['delivery_mode'],
            'body' => $message->getBody(),
        ];
        $message->ack();
    }
    echo json_encode($messages, JSON_THROW_ON_ERROR);
}

[, $command, $address] = $argv;
$url = parse_url($address);
$connection = new AMQPStreamConnection(
    $url['host'],
    $url['port'] ?? 5672,
    rawurldecode($url['user']),
    rawurldecode($url['pass']),
    rawurldecode(substr($url['path'] ?? '/', 1)) ?: '/'
);
['publish' => publish(...), 'read' => read(...)][$command]($connection, ...array_slice($argv, 3));
$connection->close();
