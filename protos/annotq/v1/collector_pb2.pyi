from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_TRACE_BEGIN: _ClassVar[Kind]
    KIND_GPU_EVENTS: _ClassVar[Kind]
    KIND_HOST_SPANS: _ClassVar[Kind]
    KIND_TRACE_ANNOTATIONS: _ClassVar[Kind]
    KIND_TRACE_NODES: _ClassVar[Kind]
    KIND_TRACE_END: _ClassVar[Kind]
    KIND_TRACE_REJECTED: _ClassVar[Kind]
    KIND_ANNOTATION_FILE: _ClassVar[Kind]
    KIND_GRAPH_FILE: _ClassVar[Kind]
    KIND_SNAPSHOT: _ClassVar[Kind]
    KIND_SNAPSHOT_ANNOTATIONS: _ClassVar[Kind]
    KIND_GRAPHS_DESTROYED: _ClassVar[Kind]
    KIND_NOTE: _ClassVar[Kind]
    KIND_PROCESS_END: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
KIND_TRACE_BEGIN: Kind
KIND_GPU_EVENTS: Kind
KIND_HOST_SPANS: Kind
KIND_TRACE_ANNOTATIONS: Kind
KIND_TRACE_NODES: Kind
KIND_TRACE_END: Kind
KIND_TRACE_REJECTED: Kind
KIND_ANNOTATION_FILE: Kind
KIND_GRAPH_FILE: Kind
KIND_SNAPSHOT: Kind
KIND_SNAPSHOT_ANNOTATIONS: Kind
KIND_GRAPHS_DESTROYED: Kind
KIND_NOTE: Kind
KIND_PROCESS_END: Kind

class Process(_message.Message):
    __slots__ = ("key", "job", "attempt", "rank", "world_size", "local_rank", "host", "pid", "start_ns", "gpu", "versions_json", "coordinates_json", "annotation_ids")
    KEY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_JSON_FIELD_NUMBER: _ClassVar[int]
    ANNOTATION_IDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    job: str
    attempt: int
    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    start_ns: int
    gpu: str
    versions_json: str
    coordinates_json: str
    annotation_ids: str
    def __init__(self, key: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., local_rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., start_ns: _Optional[int] = ..., gpu: _Optional[str] = ..., versions_json: _Optional[str] = ..., coordinates_json: _Optional[str] = ..., annotation_ids: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("process", "schema_version", "layout")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    process: Process
    schema_version: int
    layout: str
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ..., schema_version: _Optional[int] = ..., layout: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("process_id", "committed_sequence")
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    committed_sequence: int
    def __init__(self, process_id: _Optional[int] = ..., committed_sequence: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("process_id", "sequence", "kind", "schema_version", "header", "payload")
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    sequence: int
    kind: Kind
    schema_version: int
    header: bytes
    payload: bytes
    def __init__(self, process_id: _Optional[int] = ..., sequence: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., schema_version: _Optional[int] = ..., header: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("process_id", "sequence", "error")
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    sequence: int
    error: str
    def __init__(self, process_id: _Optional[int] = ..., sequence: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sent_ns",)
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    def __init__(self, sent_ns: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("received_ns", "answered_ns")
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_NS_FIELD_NUMBER: _ClassVar[int]
    received_ns: int
    answered_ns: int
    def __init__(self, received_ns: _Optional[int] = ..., answered_ns: _Optional[int] = ...) -> None: ...

class ClockSample(_message.Message):
    __slots__ = ("sent_ns", "received_ns", "answered_ns", "returned_ns")
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_NS_FIELD_NUMBER: _ClassVar[int]
    RETURNED_NS_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int
    def __init__(self, sent_ns: _Optional[int] = ..., received_ns: _Optional[int] = ..., answered_ns: _Optional[int] = ..., returned_ns: _Optional[int] = ...) -> None: ...

class ProcessBeat(_message.Message):
    __slots__ = ("process_id", "alive", "step", "step_ns", "seen_age_ns", "spooled_bytes", "dropped_traces")
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    SEEN_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TRACES_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    alive: bool
    step: int
    step_ns: int
    seen_age_ns: int
    spooled_bytes: int
    dropped_traces: int
    def __init__(self, process_id: _Optional[int] = ..., alive: bool = ..., step: _Optional[int] = ..., step_ns: _Optional[int] = ..., seen_age_ns: _Optional[int] = ..., spooled_bytes: _Optional[int] = ..., dropped_traces: _Optional[int] = ...) -> None: ...

class BeatRequest(_message.Message):
    __slots__ = ("host", "processes", "samples")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    host: str
    processes: _containers.RepeatedCompositeFieldContainer[ProcessBeat]
    samples: _containers.RepeatedCompositeFieldContainer[ClockSample]
    def __init__(self, host: _Optional[str] = ..., processes: _Optional[_Iterable[_Union[ProcessBeat, _Mapping]]] = ..., samples: _Optional[_Iterable[_Union[ClockSample, _Mapping]]] = ...) -> None: ...

class BeatReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("sql", "parameters_json", "rows", "seconds")
    SQL_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    sql: str
    parameters_json: str
    rows: int
    seconds: float
    def __init__(self, sql: _Optional[str] = ..., parameters_json: _Optional[str] = ..., rows: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class QueryReply(_message.Message):
    __slots__ = ("arrow", "last", "truncated", "seconds")
    ARROW_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    arrow: bytes
    last: bool
    truncated: bool
    seconds: float
    def __init__(self, arrow: _Optional[bytes] = ..., last: bool = ..., truncated: bool = ..., seconds: _Optional[float] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("version", "store", "store_bytes", "started_ns", "now_ns", "queued_batches", "queued_bytes", "committed_batches", "committed_rows", "rejected", "commit_seconds_p50", "commit_seconds_max", "problem", "views")
    class RejectedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SECONDS_P50_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SECONDS_MAX_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    version: str
    store: str
    store_bytes: int
    started_ns: int
    now_ns: int
    queued_batches: int
    queued_bytes: int
    committed_batches: int
    committed_rows: int
    rejected: _containers.ScalarMap[str, int]
    commit_seconds_p50: float
    commit_seconds_max: float
    problem: str
    views: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., store: _Optional[str] = ..., store_bytes: _Optional[int] = ..., started_ns: _Optional[int] = ..., now_ns: _Optional[int] = ..., queued_batches: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., committed_batches: _Optional[int] = ..., committed_rows: _Optional[int] = ..., rejected: _Optional[_Mapping[str, int]] = ..., commit_seconds_p50: _Optional[float] = ..., commit_seconds_max: _Optional[float] = ..., problem: _Optional[str] = ..., views: _Optional[_Iterable[str]] = ...) -> None: ...
