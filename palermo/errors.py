"""Every error that Palermo raises, in one tree.

    PalermoError
    ├── UsageError                 a name, a setting or an argument that the caller must correct
    │   ├── SettingInvalid
    │   │   └── UrlInvalid
    │   ├── QueueNameInvalid
    │   ├── IdInvalid
    │   ├── OptionInvalid
    │   ├── TopicInvalid
    │   └── JobNameTaken
    ├── BrokerError                the broker or the connection to it
    │   ├── BrokerUnavailable      not reachable, or the connection was lost: trying again may help
    │   │   ├── LeaderUnavailable  the broker answers, but the leading worker doesn't
    │   │   └── BrokerBlocked      the broker answers, but stores nothing for now
    │   ├── BrokerRefused          reachable, but refuses: credentials, vhost, permission, TLS
    │   ├── StoreInvalid           the SQLite file can't be used
    │   ├── PublishRefused         reachable, but doesn't store the message
    │   │   └── NoSubscriber       an event without a subscriber, if the settings refuse that
    │   ├── DeliveryLost           the delivery no longer belongs to this worker
    │   └── NotBrowsable           reading this queue would harm it
    ├── SerializationError
    │   ├── EncodeError            a value that the serializer can't write
    │   ├── BodyTooLarge
    │   ├── HeadersTooLarge
    │   ├── DecodeError            a body that doesn't match its media type
    │   │   └── SignatureInvalid
    │   ├── MediaTypeUnknown
    │   └── MediaTypeRefused
    ├── JobError                   why a job failed other than by raising an error itself
    │   ├── JobUnnamed
    │   ├── JobNotFound
    │   ├── HeaderInvalid
    │   ├── ArgumentsInvalid
    │   ├── JobCrashed             the job's process died
    │   ├── JobOutOfMemory         killed for exceeding the worker's memory limit
    │   ├── JobTimeout             ran longer than its timeout
    │   ├── RerunTimeout           was still running after its rerun_after
    │   ├── JobExpired             wasn't started in time, and didn't run
    │   ├── DuplicateJob           another job has its key: raised when enqueuing, or the reason why it didn't run
    │   ├── JobTerminated          raised in a job that a stopping worker releases
    │   ├── JobCancelled           raised in a job that was cancelled
    │   └── WorkerDied             as many workers died running it as max_deaths allows
    ├── ResultError                why a job's result isn't available
    │   ├── JobFailed              the job failed, or was discarded or cancelled
    │   ├── ResultTimeout          the job hasn't ended in time; also a TimeoutError
    │   ├── ResultNotKept          the result wasn't kept, or has left the journal
    │   ├── ResultRefused          the result is too large, or can't be serialized
    │   └── JournalOff             the journal is off
    └── NotFound                   an id, a queue or a filter that matches nothing

There is one class for each case that a caller would handle differently. The text of an error says what happened, with
the value, and what to do about it.
"""


class PalermoError(Exception):
    """The base class. ``except palermo.PalermoError`` catches everything that Palermo itself raises."""

    #: Number of jobs that the error concerns.
    jobs = 1


class UsageError(PalermoError):
    """A value from the caller that can't be used."""


class SettingInvalid(UsageError):
    """A setting with a value that can't be used."""


class UrlInvalid(SettingInvalid):
    """A broker URL that can't be parsed, or whose scheme no installed broker supports."""


class QueueNameInvalid(UsageError):
    """A queue name that breaks the rules of docs/internals/wire.md, or that isn't for jobs."""


class IdInvalid(UsageError):
    """A job id that isn't text of 1 to 255 bytes, the limit of AMQP's message-id."""


class OptionInvalid(UsageError):
    """A job option that doesn't exist, or has a value that can't be used."""


class TopicInvalid(UsageError):
    """A topic, a topic pattern or a group that can't be used."""


class JobNameTaken(UsageError):
    """Two different jobs with the same wire name."""


class BrokerError(PalermoError):
    """A problem with the broker or the connection to it."""


class BrokerUnavailable(BrokerError):
    """The broker didn't answer in time, or the connection to it was lost."""


class LeaderUnavailable(BrokerUnavailable):
    """RabbitMQ answers, but the leading worker doesn't: it is stopped, swapped out or stuck."""


class BrokerBlocked(BrokerUnavailable):
    """The broker answers but stores nothing for now because of an alarm, or because its memory or disk is full."""


class BrokerRefused(BrokerError):
    """The broker refused the connection or an operation: credentials, virtual host, permission or TLS."""


class StoreInvalid(BrokerError):
    """A SQLite file that can't be used, of a broker or a temporary index.

    It isn't a database, is read-only, belongs to another machine, or the disk is full.
    """


class PublishRefused(BrokerError):
    """The broker didn't store the message, although the connection works."""


class NoSubscriber(PublishRefused):
    """No group subscribes to the event's topic, and the settings refuse such events."""


class DeliveryLost(BrokerError):
    """The delivery returned to its queue before it was settled, because its connection or channel was lost."""


class NotBrowsable(BrokerError):
    """This queue can't be read for display: reading would count against its messages, or the user lacks permission."""


class SerializationError(PalermoError):
    """Values that couldn't be turned into bytes, or bytes that couldn't be turned into values."""


class EncodeError(SerializationError):
    """A value that the serializer can't write. The text gives the path to it."""


class BodyTooLarge(SerializationError):
    """A body of more than 16 MiB when enqueuing (4 MiB with a unique key), or 64 MB, decompressed, when running."""


class HeadersTooLarge(SerializationError):
    """Headers that don't fit into one AMQP frame."""


class DecodeError(SerializationError):
    """A body that doesn't match its media type."""


class SignatureInvalid(DecodeError):
    """A signed body whose signature doesn't match: it was changed, or signed with another key."""


class MediaTypeUnknown(SerializationError):
    """No serializer or compression is registered under this name."""


class MediaTypeRefused(SerializationError):
    """A media type that this worker doesn't accept."""


class JobError(PalermoError):
    """The reason why a job failed other than by raising an error itself."""


class JobUnnamed(JobError):
    """A message without the header job-class."""


class JobNotFound(JobError):
    """A message with the name of a job that the worker's modules don't declare."""


class HeaderInvalid(JobError):
    """A header of Palermo with a value of the wrong type."""


class ArgumentsInvalid(JobError, UsageError):
    """Arguments that don't match the job's signature, when enqueuing or running."""


class JobCrashed(JobError):
    """The process that ran the job died: by a signal, by exiting, or for lack of memory."""


class JobOutOfMemory(JobError):
    """The job's process exceeded --max-memory and was killed."""


class JobTimeout(JobError):
    """The job ran longer than its timeout. Raised in the job first; if the job continues, it is killed."""


class RerunTimeout(JobError):
    """The job was still running `rerun_after` seconds after it began. Its process was killed, and it runs again."""


class JobExpired(JobError):
    """The job was still waiting when its `expires` had passed. It didn't run."""


class DuplicateJob(JobError):
    """Another job, `id`, holds this job's unique key. `state` has the same values as `Conflict.state`."""

    def __init__(self, text: str, *, id: str = "", state: str = "") -> None:
        super().__init__(text)
        self.id = id
        self.state = state


class JobTerminated(JobError):
    """Raised in a running job whose worker must stop, so that it can clean up before it is killed and released."""


class JobCancelled(JobError):
    """Raised in a running job that was cancelled, so that it can clean up before its process is killed."""


class WorkerDied(JobError):
    """As many workers died while running the job as max_deaths allows, so it isn't tried again."""


class ResultError(PalermoError):
    """A job's result isn't available."""


class JobFailed(ResultError):
    """The awaited job failed, or was discarded or cancelled; `state` says which."""

    def __init__(self, text: str, *, state: str = "failed", error: str = "", message: str = "") -> None:
        super().__init__(text)
        self.state = state
        #: The dotted name of the exception's class, and its text; "" if there was no exception.
        self.error = error
        self.message = message


class ResultTimeout(ResultError, TimeoutError):
    """The job didn't end within the caller's timeout."""


class ResultNotKept(ResultError):
    """The job has ended, or will end, and its result isn't kept or has left the journal."""


class ResultRefused(ResultError):
    """The job's result wasn't kept because it is larger than max_result or can't be serialized."""


class JournalOff(ResultError):
    """The `journal` setting is off, so return values aren't recorded."""


class NotFound(PalermoError):
    """An id, a queue or a filter that matches nothing."""
