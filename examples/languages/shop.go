// A shop in Go, with amqp091-go: `go mod init shop && go get github.com/rabbitmq/amqp091-go`.
// docs/guides/languages.md explains it.
//
//	go run shop.go enqueue     enqueues a job that a Palermo worker runs
//	go run shop.go work        runs the jobs of the queue `thumbnails`, until Ctrl-C
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var exchange = variable("PALERMO_EXCHANGE", "palermo")

func variable(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func nameOf(queue string) string {
	if exchange == "palermo" {
		return queue
	}
	return exchange + "." + queue
}

func declare(channel *amqp.Channel, queue string) error {
	if err := channel.ExchangeDeclare(exchange, "direct", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(nameOf(queue), true, false, false, false, nil); err != nil {
		return err
	}
	return channel.QueueBind(nameOf(queue), nameOf(queue), exchange, false, nil)
}

// What no queue took, and what the broker confirmed. run makes them.
var returned chan amqp.Return
var confirmed chan amqp.Confirmation

// publish returns when the broker has stored the message. The channel is in confirm mode.
func publish(channel *amqp.Channel, queue string, message amqp.Publishing) error {
	if err := declare(channel, queue); err != nil {
		return err
	}
	return send(channel, exchange, nameOf(queue), message)
}

func send(channel *amqp.Channel, exchange, key string, message amqp.Publishing) error {
	message.DeliveryMode = amqp.Persistent
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := channel.PublishWithContext(ctx, exchange, key, true, false, message); err != nil {
		return err
	}
	select {
	case confirm := <-confirmed:
		if confirm.Ack && len(returned) == 0 {
			return nil
		}
		return errors.New("the broker did not store the message")
	case <-ctx.Done():
		return errors.New("the broker did not confirm the message")
	}
}

func newID() string {
	id := make([]byte, 16)
	rand.Read(id)
	return fmt.Sprintf("%x", id)
}

func enqueue(channel *amqp.Channel) error {
	body, err := json.Marshal([]string{"ann@example.com"})
	if err != nil {
		return err
	}
	return publish(channel, "mail", amqp.Publishing{
		ContentType: "application/json",
		MessageId:   newID(),
		Headers:     amqp.Table{"job-class": "shop.SendMail", "queue": "mail"},
		Body:        body,
	})
}

func makeThumbnail(body []byte) (string, error) {
	var call struct {
		Args []string `json:"args"`
	}
	if json.Unmarshal(body, &call.Args) != nil {
		if err := json.Unmarshal(body, &call); err != nil {
			return "", err
		}
	}
	if len(call.Args) != 1 {
		return "", fmt.Errorf("one path is needed, and there are %d", len(call.Args))
	}
	if strings.Contains(call.Args[0], "broken") {
		return "", fmt.Errorf("cannot read %s", call.Args[0])
	}
	fmt.Println("thumbnail of", call.Args[0])
	return call.Args[0] + ".small", nil
}

func work(channel *amqp.Channel) error {
	if err := declare(channel, "thumbnails"); err != nil {
		return err
	}
	if err := channel.Qos(1, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(nameOf("thumbnails"), "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for delivery := range deliveries {
		how := "done"
		output, failure := makeThumbnail(delivery.Body)
		if failure != nil {
			how = "failed"
			if err := fail(channel, "thumbnails", delivery, failure); err != nil {
				return err
			}
		}
		if delivery.Headers["workflow"] != nil {
			if err := report(channel, delivery, how, output); err != nil {
				return err
			}
		}
		if err := delivery.Ack(false); err != nil {
			return err
		}
	}
	return errors.New("the connection is lost")
}

func fail(channel *amqp.Channel, queue string, delivery amqp.Delivery, failure error) error {
	host, _ := os.Hostname()
	headers := amqp.Table{"retries": 0} // stays as it is if the job was requeued before
	for name, value := range delivery.Headers {
		headers[name] = value
	}
	headers["queue"] = queue
	headers["exception-class"] = fmt.Sprintf("%T", failure)
	headers["exception-message"] = failure.Error()
	headers["failed-at"] = time.Now().Unix()
	headers["worker"] = fmt.Sprintf("pid:%d@%s/worker-1", os.Getpid(), host)
	id := delivery.MessageId
	if id == "" {
		id = newID()
	}
	return publish(channel, "failed", amqp.Publishing{
		ContentType:     delivery.ContentType,
		ContentEncoding: delivery.ContentEncoding,
		MessageId:       id,
		Headers:         headers,
		Body:            delivery.Body,
	})
}

func report(channel *amqp.Channel, delivery amqp.Delivery, how string, output any) error {
	headers := delivery.Headers
	run := map[string]any{"workflow": headers["workflow"], "step": headers["workflow-step"], "generation": headers["workflow-generation"], "how": how}
	if how == "done" && headers["workflow-output"] == true {
		value, err := json.Marshal(output)
		if err != nil {
			return err
		}
		run["content_type"], run["value"] = "application/json", value // a []byte becomes base64
	}
	body, err := json.Marshal(map[string]any{"format": 1, "end": map[string]any{"runs": []any{run}}})
	if err != nil {
		return err
	}
	return send(channel, "", exchange+".~workflows", amqp.Publishing{Body: body})
}

func run(command string) error {
	connection, err := amqp.Dial(variable("PALERMO_URL", "amqp://guest:guest@localhost:5672/"))
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	returned = channel.NotifyReturn(make(chan amqp.Return, 1))
	// Not PublishWithDeferredConfirm, which in amqp091-go 1.5 misses a confirm that comes at once.
	confirmed = channel.NotifyPublish(make(chan amqp.Confirmation, 1))
	if command == "work" {
		return work(channel)
	}
	return enqueue(channel)
}

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
