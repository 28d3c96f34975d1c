import type { IdRange } from '../domain/workers/id-range.ts'
import type { PublishRange } from '../domain/workers/publishing.ts'
import {
  addressPool,
  directoryPath,
  listenAddress,
  type ListenAddress,
  oneOf,
  nonEmptyText,
  integerBetween,
  publishRanges,
  userIdRange,
  type Setting,
} from './setting.ts'

/** The drivers of this program. */
export const DRIVERS = ['microsandbox', 'oci', 'kubernetes', 'simulated'] as const

/** The settings of a worker: how it joins a control plane, and how it runs sandboxes and stores their data. */
export const WORKER_SETTINGS = {
  workerName: {
    variable: 'SANDYARD_WORKER_NAME',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning: "the worker's name for `sandyard worker` (default: the host's name)",
    parse: nonEmptyText,
  } satisfies Setting<string>,
  workerMetricsAddress: {
    variable: 'SANDYARD_WORKER_METRICS_ADDRESS',
    flag: null,
    fallback: null,
    unit: 'host:port',
    meaning:
      'where `sandyard worker` answers `GET /metrics` in plain HTTP, such as 127.0.0.1:9480, by the rules of `SANDYARD_METRICS_KEY`; without it, a worker listens nowhere',
    parse: listenAddress,
  } satisfies Setting<ListenAddress>,
  driver: {
    variable: 'SANDYARD_DRIVER',
    flag: 'driver',
    fallback: 'auto',
    unit: 'auto, microsandbox, oci, kubernetes, simulated',
    meaning:
      'the driver that runs sandboxes; `auto` picks microVMs where the machine can run them and OCI containers elsewhere; `kubernetes` makes each a Pod of a cluster, for `sandyard worker` alone; `simulated` runs nothing, for trying the API',
    parse: oneOf(['auto', ...DRIVERS]),
  } satisfies Setting<'auto' | (typeof DRIVERS)[number]>,
  runtime: {
    variable: 'SANDYARD_RUNTIME',
    flag: 'runtime',
    fallback: 'auto',
    unit: 'auto, runsc, crun, runc',
    meaning: 'the OCI runtime; `auto` picks the one with the strongest isolation that is installed',
    parse: oneOf(['auto', 'runsc', 'crun', 'runc']),
  } satisfies Setting<'auto' | 'runsc' | 'crun' | 'runc'>,
  diskMib: {
    variable: 'SANDYARD_DISK_MIB',
    flag: null,
    fallback: '8192',
    unit: 'MiB',
    meaning: "the size of a sandbox's writable disk, unless the request sets one",
    parse: integerBetween(64, 1_048_576),
  } satisfies Setting<number>,
  diskMaxMib: {
    variable: 'SANDYARD_DISK_MAX_MIB',
    flag: null,
    fallback: '65536',
    unit: 'MiB',
    meaning: 'the largest writable disk that a sandbox may have; a request for a larger one is answered 400',
    parse: integerBetween(64, 1_048_576),
  } satisfies Setting<number>,
  diskOvercommit: {
    variable: 'SANDYARD_DISK_OVERCOMMIT',
    flag: null,
    fallback: '2',
    unit: 'factor',
    meaning:
      "how many times the free space, less the reserve, the disks of a worker's sandboxes may promise together, those of stopped sandboxes included; new sandboxes beyond it wait; with 1, every disk can be filled",
    parse: integerBetween(1, 1_000),
  } satisfies Setting<number>,
  imageMaxGib: {
    variable: 'SANDYARD_IMAGE_MAX_GIB',
    flag: null,
    fallback: '20',
    unit: 'GiB',
    meaning: 'the maximum size of an image when unpacked; a larger image is refused while it is pulled',
    parse: integerBetween(1, 65_536),
  } satisfies Setting<number>,
  imageMaxFiles: {
    variable: 'SANDYARD_IMAGE_MAX_FILES',
    flag: null,
    fallback: '1000000',
    unit: 'files',
    meaning: 'the maximum number of files, folders and links in an image',
    parse: integerBetween(1, 100_000_000),
  } satisfies Setting<number>,
  imageMaxLayers: {
    variable: 'SANDYARD_IMAGE_MAX_LAYERS',
    flag: null,
    fallback: '127',
    unit: 'layers',
    meaning: 'the maximum number of layers of an image',
    parse: integerBetween(1, 127),
  } satisfies Setting<number>,
  imageStoreGib: {
    variable: 'SANDYARD_IMAGE_STORE_GIB',
    flag: null,
    fallback: null,
    unit: 'GiB',
    meaning:
      'the maximum size of all stored images; beyond it, the least recently used ones are deleted, and pulls are refused if sandboxes need the others (default: a quarter of the file system)',
    parse: integerBetween(1, 1_048_576),
  } satisfies Setting<number>,
  diskReserveMib: {
    variable: 'SANDYARD_DISK_RESERVE_MIB',
    flag: null,
    fallback: null,
    unit: 'MiB',
    meaning:
      'the free disk space that only the control plane may use; below it, a worker refuses pulls, new disks and writes to volumes; below half of it, the worker refuses starts and stops the sandboxes that grow; 0 means no reserve (default: 5 % of the file system, at most 2048)',
    parse: integerBetween(0, 1_048_576),
  } satisfies Setting<number>,
  volumePoolGib: {
    variable: 'SANDYARD_VOLUME_POOL_GIB',
    flag: null,
    fallback: null,
    unit: 'GiB',
    meaning:
      'the size of the sparse file that holds the volumes; a larger value enlarges the file at the next start (default: half of the free space at the first start)',
    parse: integerBetween(1, 1_048_576),
  } satisfies Setting<number>,
  sharedVolumesDir: {
    variable: 'SANDYARD_SHARED_VOLUMES_DIR',
    flag: null,
    fallback: null,
    unit: 'folder',
    meaning:
      'a folder for volumes on a file system that all workers mount; with such a folder, size limits of volumes are refused',
    parse: directoryPath,
  } satisfies Setting<string>,
  storageSampleSecs: {
    variable: 'SANDYARD_STORAGE_SAMPLE_SECS',
    flag: null,
    fallback: '60',
    unit: 's',
    meaning: 'the interval at which a worker measures the size of its volumes',
    parse: integerBetween(1, 86_400),
  } satisfies Setting<number>,
  vcpuOvercommit: {
    variable: 'SANDYARD_VCPU_OVERCOMMIT',
    flag: null,
    fallback: '8',
    unit: 'vCPUs per core',
    meaning: 'how many vCPUs a worker offers for each of its processor cores',
    parse: integerBetween(1, 1_000),
  } satisfies Setting<number>,
  hostReserveMib: {
    variable: 'SANDYARD_HOST_RESERVE_MIB',
    flag: null,
    fallback: null,
    unit: 'MiB',
    meaning:
      'the memory that all sandboxes together leave to the host; a worker offers the rest (default: 5 % of the memory, at least 512 MiB)',
    parse: integerBetween(0, 16_777_216),
  } satisfies Setting<number>,
  pidsPerGib: {
    variable: 'SANDYARD_PIDS_PER_GIB',
    flag: null,
    fallback: '1024',
    unit: 'processes',
    meaning:
      'how many processes and threads a container may have for each GiB of its memory, in addition to 512; a container never has more than its share of kernel.pid_max',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  sessionsPerSandbox: {
    variable: 'SANDYARD_SESSIONS_PER_SANDBOX',
    flag: null,
    fallback: '256',
    unit: 'sessions',
    meaning:
      'how many commands, TCP connections and file helpers of one container may be open at once; a further one fails with EAGAIN',
    parse: integerBetween(1, 100_000),
  } satisfies Setting<number>,
  sessionsPerOrg: {
    variable: 'SANDYARD_SESSIONS_PER_ORG',
    flag: null,
    fallback: '1024',
    unit: 'sessions',
    meaning:
      "the same for all containers of one organization, per worker; at most a sixteenth of the worker's limit of open files",
    parse: integerBetween(1, 100_000),
  } satisfies Setting<number>,
  diskMibPerSec: {
    variable: 'SANDYARD_DISK_MIB_PER_SEC',
    flag: null,
    fallback: null,
    unit: 'MiB per s',
    meaning:
      'the maximum rate at which a container reads its disk, and at which it writes to it; with cgroup v1, writes through the page cache are not counted (default: no limit)',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  diskIops: {
    variable: 'SANDYARD_DISK_IOPS',
    flag: null,
    fallback: null,
    unit: 'operations per s',
    meaning:
      'the maximum rate of read operations of a container on its disk, and of write operations; counted as for SANDYARD_DISK_MIB_PER_SEC (default: no limit)',
    parse: integerBetween(1, 10_000_000),
  } satisfies Setting<number>,
  networkPool: {
    variable: 'SANDYARD_NETWORK_POOL',
    flag: null,
    fallback: '10.209.0.0/16',
    unit: 'CIDR',
    meaning:
      'the IPv4 addresses of sandboxes; a /16 holds 16,383 sandboxes; another range is picked if a route of the machine overlaps this one',
    parse: addressPool,
  } satisfies Setting<string>,
  publish: {
    variable: 'SANDYARD_PUBLISH',
    flag: 'publish',
    fallback: null,
    unit: 'off, loopback, ranges',
    meaning:
      'the addresses and ports of its machine on which a worker may publish ports of sandboxes (`network.ports`): `loopback` is 127.0.0.1 and ::1 with the ports from 1024 on; ranges are such as `0.0.0.0:20000-29999,127.0.0.1` (default: `loopback` with `sandyard up`, `off` with `sandyard worker`)',
    parse: publishRanges,
  } satisfies Setting<readonly PublishRange[]>,
  connectionsPerSandbox: {
    variable: 'SANDYARD_CONNECTIONS_PER_SANDBOX',
    flag: null,
    fallback: '4096',
    unit: 'count',
    meaning:
      "the maximum number of a sandbox's connections at a time, of whatever protocol, and as many for DNS; at most a sixteenth of the kernel's `nf_conntrack_max`; `max_connections` of a request can only lower it",
    parse: integerBetween(16, 1_000_000),
  } satisfies Setting<number>,
  uidRange: {
    variable: 'SANDYARD_UID_RANGE',
    flag: null,
    // Between the ranges that systemd gives to containers and to foreign file systems (systemd.io/UIDS-GIDS, 2026-11).
    fallback: '1879048192-2147352575',
    unit: 'FIRST-LAST',
    meaning:
      "the host's user and group ids for sandboxes; each running container gets 65,536 of them, so the default serves 4,094; give every worker of a machine its own range",
    parse: userIdRange,
  } satisfies Setting<IdRange>,
  readyAhead: {
    variable: 'SANDYARD_READY_AHEAD',
    flag: null,
    fallback: '4',
    unit: 'count',
    meaning:
      'how many disks, networks and user namespaces a worker prepares in advance, so that sandboxes start faster',
    parse: integerBetween(0, 64),
  } satisfies Setting<number>,
  warm: {
    variable: 'SANDYARD_WARM',
    flag: null,
    fallback: null,
    unit: 'count',
    meaning:
      'how many warm sandboxes a worker with `crun` or the driver `kubernetes` keeps at most: sandboxes that are ready before a create asks for them; each takes about 4 MiB of the memory of a worker with `crun`, and a whole Pod of a cluster; 0 turns them off (default: with `crun` one for each 256 MiB of memory, at least 8 and at most 32; with `kubernetes` 8)',
    parse: integerBetween(0, 64),
  } satisfies Setting<number>,
  logLimitMib: {
    variable: 'SANDYARD_LOG_LIMIT_MIB',
    flag: null,
    fallback: '16',
    unit: 'MiB',
    meaning: 'the maximum size of the log of one sandbox; beyond it, the oldest entries are deleted',
    parse: integerBetween(1, 65_536),
  } satisfies Setting<number>,
  logKeepHours: {
    variable: 'SANDYARD_LOG_KEEP_HOURS',
    flag: null,
    fallback: '72',
    unit: 'h',
    meaning: 'how long the log of a stopped sandbox is kept after its last entry',
    parse: integerBetween(0, 87_600),
  } satisfies Setting<number>,
} as const
