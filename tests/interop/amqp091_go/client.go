// Enqueues jobs and reads failed ones with amqp091-go, from what docs/internals/wire.md says and nothing else.
//
//	client publish URL EXCHANGE QUEUE     five jobs that run and one that fails
//	client read URL QUEUE                 takes all messages there and prints them as JSON
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const amount = 1 << 40

type message struct {
	Headers      amqp.Table `json:"headers"`
	ID           string     `json:"id"`
	ContentType  string     `json:"content_type"`
	DeliveryMode uint8      `json:"delivery_mode"`
	Body         string     `json:"body"`
}

func publish(connection *amqp.Connection, exchange, queue string) error {
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	if err := channel.ExchangeDeclare(exchange, "direct", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	if err := channel.QueueBind(queue, queue, exchange, false, nil); err != nil {
		return err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, 6))
	// Not PublishWithDeferredConfirm, which in amqp091-go 1.5 misses a confirm that comes at once.
	confirmed := channel.NotifyPublish(make(chan amqp.Confirmation, 1))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	jobs := []amqp.Publishing{
		{Headers: amqp.Table{"job-class": "interop.note"}, Body: []byte(`["positional", 1, 2.5, null, true]`)},
		{Headers: amqp.Table{"job-class": "interop.note"}, Body: []byte(`{"to": "grüße@東京.example", "count": 3}`)},
		{
			Headers: amqp.Table{"job-class": "interop.note", "arguments": "both"},
			Body:    []byte(`{"args": ["both"], "kwargs": {"loud": true}}`),
		},
		{Headers: amqp.Table{"job-class": "interop.note"}, Body: []byte(`"single"`), MessageId: "chosen-by-go"},
		{Headers: amqp.Table{"job-class": "interop.note", "id": "named-in-a-header"}},
		{
			Headers: amqp.Table{
				"job-class":  "interop.explode",
				"created-at": int64(1_700_000_000),
				"x-small":    int32(7),
				"x-text":     "ünchanged",
			},
			Body:      []byte(fmt.Sprintf("[%d]", amount)),
			MessageId: "fails-from-go",
		},
	}
	for _, job := range jobs {
		job.ContentType, job.DeliveryMode = "application/json", amqp.Persistent
		if err := channel.PublishWithContext(ctx, exchange, queue, true, false, job); err != nil {
			return err
		}
		select {
		case confirm := <-confirmed:
			if !confirm.Ack || len(returned) > 0 {
				return errors.New("a message came back")
			}
		case <-ctx.Done():
			return errors.New("a message was not confirmed")
		}
	}
	return nil
}

func read(connection *amqp.Connection, queue string) error {
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	messages := []message{}
	for {
		got, there, err := channel.Get(queue, false)
		if err != nil {
			return err
		}
		if !there {
			return json.NewEncoder(os.Stdout).Encode(messages)
		}
		messages = append(messages, message{got.Headers, got.MessageId, got.ContentType, got.DeliveryMode, string(got.Body)})
		if err := got.Ack(false); err != nil {
			return err
		}
	}
}

func run(command, url string, rest []string) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	if command == "publish" {
		return publish(connection, rest[0], rest[1])
	}
	return read(connection, rest[0])
}

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}
