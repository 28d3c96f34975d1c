import { folder, oneOf, text, wholeNumber, type Setting } from '../lib/setting.ts'

/** The settings of what runs sandboxes on a machine. */
export const WORKER_SETTINGS = {
  driver: {
    variable: 'SANDYARD_DRIVER',
    flag: 'driver',
    fallback: 'auto',
    unit: 'auto, microsandbox, oci, simulated',
    meaning:
      'what runs sandboxes; `auto` takes microVMs where the machine can run them and OCI containers elsewhere, `simulated` runs nothing and is for trying the API',
    parse: oneOf(['auto', 'microsandbox', 'oci', 'simulated']),
  } satisfies Setting<'auto' | 'microsandbox' | 'oci' | 'simulated'>,
  runtime: {
    variable: 'SANDYARD_RUNTIME',
    flag: 'runtime',
    fallback: 'auto',
    unit: 'auto, runsc, crun, runc',
    meaning: 'the OCI runtime; `auto` takes the strongest isolation that is installed',
    parse: oneOf(['auto', 'runsc', 'crun', 'runc']),
  } satisfies Setting<'auto' | 'runsc' | 'crun' | 'runc'>,
  diskMib: {
    variable: 'SANDYARD_DISK_MIB',
    flag: null,
    fallback: '8192',
    unit: 'MiB',
    meaning: 'size of the writable disk of a sandbox that names none',
    parse: wholeNumber(64, 1_048_576),
  } satisfies Setting<number>,
  volumePoolGib: {
    variable: 'SANDYARD_VOLUME_POOL_GIB',
    flag: null,
    fallback: null,
    unit: 'GiB',
    meaning:
      'size of the file that volumes live in, sparse; a larger one grows it at the next start (default: half of what is free at the first)',
    parse: wholeNumber(1, 1_048_576),
  } satisfies Setting<number>,
  sharedVolumesDir: {
    variable: 'SANDYARD_SHARED_VOLUMES_DIR',
    flag: null,
    fallback: null,
    unit: 'folder',
    meaning: 'keeps volumes here, on a file system that all workers mount; caps on volumes are then refused',
    parse: folder,
  } satisfies Setting<string>,
  storageSampleSecs: {
    variable: 'SANDYARD_STORAGE_SAMPLE_SECS',
    flag: null,
    fallback: '60',
    unit: 's',
    meaning: 'how often a worker measures what its volumes take',
    parse: wholeNumber(1, 86_400),
  } satisfies Setting<number>,
  vcpuOvercommit: {
    variable: 'SANDYARD_VCPU_OVERCOMMIT',
    flag: null,
    fallback: '8',
    unit: 'vCPUs per core',
    meaning: 'how many vCPUs a worker offers for each core it has',
    parse: wholeNumber(1, 1_000),
  } satisfies Setting<number>,
  networkPool: {
    variable: 'SANDYARD_NETWORK_POOL',
    flag: null,
    fallback: '10.209.0.0/16',
    unit: 'CIDR',
    meaning:
      'the IPv4 addresses of sandboxes; a /16 serves 16,383, and another is taken where a route of the machine meets it',
    parse: text,
  } satisfies Setting<string>,
  readyAhead: {
    variable: 'SANDYARD_READY_AHEAD',
    flag: null,
    fallback: '4',
    unit: 'count',
    meaning: 'disks and networks made ready before they are asked for',
    parse: wholeNumber(0, 64),
  } satisfies Setting<number>,
  logLimitMib: {
    variable: 'SANDYARD_LOG_LIMIT_MIB',
    flag: null,
    fallback: '16',
    unit: 'MiB',
    meaning: "the most that a worker keeps of a sandbox's log; beyond it the oldest entries go",
    parse: wholeNumber(1, 65_536),
  } satisfies Setting<number>,
  logKeepHours: {
    variable: 'SANDYARD_LOG_KEEP_HOURS',
    flag: null,
    fallback: '72',
    unit: 'h',
    meaning: "how long a sandbox's log is kept after its last entry, once it no longer runs",
    parse: wholeNumber(0, 87_600),
  } satisfies Setting<number>,
  shutdown: {
    variable: 'SANDYARD_SHUTDOWN',
    flag: 'shutdown',
    fallback: 'keep',
    unit: 'keep, stop',
    meaning:
      'what a clean shutdown does to running sandboxes: `keep` lets them run and the next start takes them over, `stop` stops them',
    parse: oneOf(['keep', 'stop']),
  } satisfies Setting<'keep' | 'stop'>,
} as const
