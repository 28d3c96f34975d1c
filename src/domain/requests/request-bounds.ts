/**
 * Bounds on the size of one request. A bound without a source is far above the needs of a sandbox. It is low enough
 * that the cost of a request stays proportional to the size of its body.
 */
export const INT32_MAX = 2_147_483_647
/** The largest whole number that JSON in JavaScript represents exactly. */
export const INT53_MAX = Number.MAX_SAFE_INTEGER

/** The least memory with which a runtime can start a process in its sandbox. */
export const MEMORY_MIN_MIB = 16
export const VCPUS_MIN = 1
/** A smaller file system has no space for files. */
export const DISK_MIN_MIB = 16

/** A hundred years. With this bound, the end of a lifetime that starts now stays within the range of dates. */
export const LIFETIME_MAX_SECS = 100 * 366 * 24 * 60 * 60

export const ENV_MAX = 4096
export const ARGS_MAX = 4096
export const SCRIPTS_MAX = 256
export const RLIMITS_MAX = 16
export const MOUNTS_MAX = 64
export const PATCHES_MAX = 1024
export const RULES_MAX = 1024
export const RULE_PORTS_MAX = 64
export const SECRETS_MAX = 256
export const HOSTS_MAX = 256
export const INTERCEPTED_PORTS_MAX = 64
export const CA_CERTIFICATES_MAX = 16
export const PEM_MAX_CHARS = 65_536
/** A cached certificate takes some kilobytes of the worker's memory. */
export const CACHED_CERTIFICATES_MAX = 10_000
export const CERTIFICATE_HOURS_MAX = 8760
export const HEADER_FIELDS_MAX = 64
/** A secret is sent in a request. Most servers accept no header field that is longer. */
export const SECRET_VALUE_MAX_BYTES = 65_536
/** The limit of the public client. */
export const PLACEHOLDER_MAX_BYTES = 1024
/** No header field that servers know has a longer name. */
export const HEADER_FIELD_MAX_CHARS = 256
export const ENV_VAR_MAX_BYTES = 256
export const PORT_MAX = 65_535
export const FILE_MODE_MAX = 0o7777

/**
 * OCI distribution specification: repository and host together have fewer than 255 characters. A digest adds at most
 * 140.
 */
export const IMAGE_REFERENCE_MAX_CHARS = 512
/** Linux: PATH_MAX is 4,096 with the final NUL. */
export const PATH_MAX_BYTES = 4095
/** Linux: NAME_MAX. */
export const FILE_NAME_MAX_BYTES = 255
/** Linux: a host name has at most 64 bytes; RFC 1123: 63 per label. */
export const HOSTNAME_MAX_BYTES = 63

export const NAME_MAX_BYTES = 128
export const SLUG_MIN_CHARS = 3
export const SLUG_MAX_CHARS = 63

export const LABELS_MAX = 64
export const LABEL_KEY_MAX_BYTES = 128
/** With this maximum, a label's key and value fit in one index entry of PostgreSQL, which has at most 2,704 bytes. */
export const LABEL_VALUE_MAX_BYTES = 1024

export const PAGE_DEFAULT = 20
export const PAGE_MAX = 100

export const WAIT_DEFAULT_SECS = 30
export const WAIT_MAX_SECS = 300

/** The public client ends a stream after 30 s, including the time of its request. */
export const LOG_FOLLOW_DEFAULT_SECS = 25
export const LOG_FOLLOW_MAX_SECS = 3600
export const LOG_TAIL_MAX = 10_000

/**
 * How many waiting runs are counted to find the position of a sandbox in the queue. A later position is reported as
 * this number.
 */
export const WAITING_COUNTED_MAX = 10_000
