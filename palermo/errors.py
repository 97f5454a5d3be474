"""Every error Palermo raises, in one tree.

    PalermoError
    ├── UsageError                 the caller can mend it: a name, a setting, an argument
    │   ├── SettingInvalid
    │   │   └── UrlInvalid
    │   ├── QueueNameInvalid
    │   ├── IdInvalid
    │   ├── OptionInvalid
    │   ├── TopicInvalid
    │   └── JobNameTaken
    ├── BrokerError                the broker or the way to it
    │   ├── BrokerUnavailable      not reachable, or lost: trying again may help
    │   │   ├── LeaderUnavailable  the broker answers, and the worker that leads does not
    │   │   └── BrokerBlocked      the broker answers, and stores nothing for now
    │   ├── BrokerRefused          reachable, and says no: credentials, vhost, permission, TLS
    │   ├── StoreInvalid           the SQLite file cannot be used
    │   ├── PublishRefused         reachable, and would not store the message
    │   │   └── NoSubscriber       an event that no group subscribes to, where that is refused
    │   ├── DeliveryLost           the delivery is no longer ours to settle
    │   └── NotBrowsable           looking at this queue would harm it
    ├── SerializationError
    │   ├── EncodeError            a value the serializer cannot write
    │   ├── BodyTooLarge
    │   ├── HeadersTooLarge
    │   ├── DecodeError            a body that is not what its media type says
    │   │   └── SignatureInvalid
    │   ├── MediaTypeUnknown
    │   └── MediaTypeRefused
    ├── JobError                   why a job failed without, or in spite of, its own code
    │   ├── JobUnnamed
    │   ├── JobNotFound
    │   ├── HeaderInvalid
    │   ├── ArgumentsInvalid
    │   ├── JobCrashed             the job's process died under it
    │   ├── JobOutOfMemory         it was killed for growing above the worker's limit
    │   ├── JobTimeout             it ran longer than it may
    │   ├── LockExpired            it was still running when its claim ended
    │   ├── JobExpired             it was not started in time, and not run
    │   ├── DuplicateJob           another job has its key: raised when enqueuing, or why it was not run
    │   ├── JobTerminated          raised in a job that the ending worker stops and gives back
    │   ├── JobCancelled           raised in a job that someone cancelled
    │   └── WorkerDied             workers died while they ran it, as many times as max_deaths allows
    ├── ResultError                why a job's result cannot be had
    │   ├── JobFailed              there is none: the job failed, was discarded or cancelled
    │   ├── ResultTimeout          the job has not ended in time; a TimeoutError as well
    │   ├── ResultNotKept          nobody asked for it to be kept, or the journal has forgotten it
    │   ├── ResultRefused          it is too large, or cannot be serialized
    │   └── JournalOff             nothing is written down
    └── NotFound                   an id, a queue or a filter that names nothing

One class for each thing that a caller would handle differently. The text of each error says what
happened, with the value, and what to do about it.
"""


class PalermoError(Exception):
    """The root: ``except palermo.PalermoError`` catches all that Palermo itself raises."""

    #: How many jobs the error is about.
    jobs = 1


class UsageError(PalermoError):
    """Something the caller wrote cannot be used as it stands."""


class SettingInvalid(UsageError):
    """A setting has a value that means nothing."""


class UrlInvalid(SettingInvalid):
    """The broker URL cannot be read, or names a scheme that no installed broker serves."""


class QueueNameInvalid(UsageError):
    """A queue name outside the rule of docs/internals/wire.md, or a name that is not for jobs."""


class IdInvalid(UsageError):
    """A job id that is not text of 1 to 255 bytes (the limit of AMQP's message-id)."""


class OptionInvalid(UsageError):
    """A job option that does not exist, does not exist yet, or has a value that means nothing."""


class TopicInvalid(UsageError):
    """A topic, a pattern of topics or a group that cannot be used."""


class JobNameTaken(UsageError):
    """Two different jobs registered under one wire name."""


class BrokerError(PalermoError):
    """The broker, or the way to it."""


class BrokerUnavailable(BrokerError):
    """The broker did not answer in time, or the connection to it was lost."""


class LeaderUnavailable(BrokerUnavailable):
    """RabbitMQ answers, and the worker that leads does not: it is stopped, swapped out or stuck."""


class BrokerBlocked(BrokerUnavailable):
    """The broker answers and stores nothing for now: an alarm, a full memory or a full disk."""


class BrokerRefused(BrokerError):
    """The broker answered and refused us: credentials, virtual host, permission; or TLS is refused, on either side."""


class StoreInvalid(BrokerError):
    """A SQLite file that cannot be used: a broker's, or that of a temporary index.

    It is not a database, is read-only or another machine's, or the disk is full.
    """


class PublishRefused(BrokerError):
    """The broker would not store the message, although the connection is sound."""


class NoSubscriber(PublishRefused):
    """No group subscribes to the event's topic, and the settings say that such an event is refused."""


class DeliveryLost(BrokerError):
    """The delivery went back to its queue (connection or channel gone) before it was settled."""


class NotBrowsable(BrokerError):
    """This queue is not read in order to be shown: that would count against its messages, or this user may not."""


class SerializationError(PalermoError):
    """Values could not be turned into bytes, or bytes into values."""


class EncodeError(SerializationError):
    """The serializer cannot write a value; the text names the path to it."""


class BodyTooLarge(SerializationError):
    """A body above 16 MiB to enqueue; to run, one above 64 MB, or that would grow above that when decompressed."""


class HeadersTooLarge(SerializationError):
    """Headers that do not fit one AMQP frame."""


class DecodeError(SerializationError):
    """A body that is not what its media type says."""


class SignatureInvalid(DecodeError):
    """A signed body whose signature does not match: changed, or signed with another key."""


class MediaTypeUnknown(SerializationError):
    """No serializer or compression is registered under this name."""


class MediaTypeRefused(SerializationError):
    """A media type that this worker was not told to accept."""


class JobError(PalermoError):
    """Why a job failed without its own code raising."""


class JobUnnamed(JobError):
    """A message without the header job-class."""


class JobNotFound(JobError):
    """A message that names a job which this worker's modules did not register."""


class HeaderInvalid(JobError):
    """A header that Palermo knows, with a value of the wrong type."""


class ArgumentsInvalid(JobError, UsageError):
    """Arguments that do not fit the job's signature, when enqueuing or when running."""


class JobCrashed(JobError):
    """The process that ran the job died under it: a signal, an exit, or no memory."""


class JobOutOfMemory(JobError):
    """The job's process grew above --max-memory and was killed."""


class JobTimeout(JobError):
    """The job ran longer than its timeout: raised in it first, and the reason for killing it if it goes on."""


class LockExpired(JobError):
    """The job had not ended `lock_for` seconds after it began: its process was killed, and it runs again."""


class JobExpired(JobError):
    """The job was still waiting when its time to start had passed; it was not run."""


class DuplicateJob(JobError):
    """Another job has the key that this one needs: `id` says which job, `state` whether it waits, runs or has ended."""

    def __init__(self, text: str, *, id: str = "", state: str = "") -> None:
        super().__init__(text)
        self.id = id
        self.state = state


class JobTerminated(JobError):
    """Raised in a running job whose worker must end: time to clean up, before it is killed and given back."""


class JobCancelled(JobError):
    """Raised in a running job that someone cancelled: time to clean up, before its process is killed."""


class WorkerDied(JobError):
    """Workers died while they ran the job, as many times as max_deaths allows; it is not given to another."""


class ResultError(PalermoError):
    """The result of a job cannot be had."""


class JobFailed(ResultError):
    """The awaited job failed, was discarded, or was cancelled: `state` says which."""

    def __init__(self, text: str, *, state: str = "failed", error: str = "", message: str = "") -> None:
        super().__init__(text)
        self.state = state
        #: The dotted name of the exception's class, and its text; "" where there was none.
        self.error = error
        self.message = message


class ResultTimeout(ResultError, TimeoutError):
    """The job has not ended within the time that the caller waits."""


class ResultNotKept(ResultError):
    """The job has ended, or will, and its result is not kept, or was forgotten."""


class ResultRefused(ResultError):
    """The job's result was not kept: it is above max_result, or cannot be serialized."""


class JournalOff(ResultError):
    """The setting journal is off, so nothing is known of what jobs returned."""


class NotFound(PalermoError):
    """An id, a queue or a filter that names nothing."""
