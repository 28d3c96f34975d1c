import { homedir } from 'node:os'
import { join } from 'node:path'
import { PUBLIC_HUB } from './domain/image-reference.ts'
import { LOG_LEVELS, type LogLevel } from './lib/log.ts'
import { folder, oneOf, text, wholeNumber, type Setting } from './lib/setting.ts'

/** A setting whose text can't be read; the message says which, what was seen and what would be accepted. */
export class SettingError extends Error {}

function defaultDataDir(): string {
  return process.getuid?.() === 0 ? '/var/lib/sandyard' : join(homedir(), '.local/share/sandyard')
}

/** Every setting of the program. The README's table is made from this. */
export const SETTINGS = {
  host: {
    variable: 'SANDYARD_HOST',
    flag: 'host',
    fallback: '127.0.0.1',
    unit: 'address',
    meaning: 'where the API listens',
    parse: text,
  } satisfies Setting<string>,
  port: {
    variable: 'SANDYARD_PORT',
    flag: 'port',
    fallback: '8080',
    unit: 'port',
    meaning: 'where the API listens; 0 picks a free one',
    parse: wholeNumber(0, 65_535),
  } satisfies Setting<number>,
  dataDir: {
    variable: 'SANDYARD_DATA_DIR',
    flag: 'data-dir',
    fallback: null,
    unit: 'folder',
    meaning:
      'everything that lasts: database, images, disks, keys (default: /var/lib/sandyard for root, else ~/.local/share/sandyard)',
    parse: folder,
  } satisfies Setting<string>,
  apiKey: {
    variable: 'SANDYARD_API_KEY',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning: 'at the first start: the first API key, in place of a made one (at least 8 characters)',
    parse: (seen) =>
      seen.length >= 8 && !/\s/.test(seen)
        ? { value: seen }
        : { accepted: 'at least 8 characters, none of them blank' },
  } satisfies Setting<string>,
  databaseUrl: {
    variable: 'DATABASE_URL',
    flag: null,
    fallback: null,
    unit: 'URL',
    meaning: 'your own PostgreSQL 15 or newer, in place of the embedded one',
    parse: text,
  } satisfies Setting<string>,
  secretKey: {
    variable: 'SANDYARD_SECRET_KEY',
    flag: null,
    fallback: null,
    unit: 'base64, 32 bytes',
    meaning: 'seals stored registry passwords (default: a key made in the data folder)',
    parse: (seen) => (Buffer.from(seen, 'base64').length === 32 ? { value: seen } : { accepted: '32 bytes in base64' }),
  } satisfies Setting<string>,
  logLevel: {
    variable: 'SANDYARD_LOG_LEVEL',
    flag: 'log-level',
    fallback: 'warn',
    unit: LOG_LEVELS.join(', '),
    meaning: 'what is logged, as JSON lines on standard error',
    parse: oneOf<LogLevel>(LOG_LEVELS),
  } satisfies Setting<LogLevel>,
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
  defaultRegistry: {
    variable: 'SANDYARD_DEFAULT_REGISTRY',
    flag: null,
    fallback: PUBLIC_HUB,
    unit: 'host',
    meaning: 'the registry of image references without a host',
    parse: text,
  } satisfies Setting<string>,
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
  stopGraceMs: {
    variable: 'SANDYARD_STOP_GRACE_MS',
    flag: null,
    fallback: '5000',
    unit: 'ms',
    meaning: 'from SIGTERM to SIGKILL when a sandbox is stopped',
    parse: wholeNumber(0, 9_000),
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
  waitCapacity: {
    variable: 'SANDYARD_WAIT_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'requests',
    meaning: 'how many requests may wait for a sandbox at once; more are answered 429',
    parse: wholeNumber(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamCapacity: {
    variable: 'SANDYARD_LOG_STREAM_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'streams',
    meaning: 'the most logs that are read or followed at once, counted by each server process; more are answered 429',
    parse: wholeNumber(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamsPerOrg: {
    variable: 'SANDYARD_LOG_STREAMS_PER_ORG',
    flag: null,
    fallback: '256',
    unit: 'streams',
    meaning: 'the most logs that one organization reads or follows at once, counted alike; more are answered 429',
    parse: wholeNumber(0, 1_000_000),
  } satisfies Setting<number>,
  channelsPerSandbox: {
    variable: 'SANDYARD_CHANNELS_PER_SANDBOX',
    flag: null,
    fallback: '256',
    unit: 'channels',
    meaning:
      'the most command channels that one sandbox has open at once, counted by each server process; more are answered 429',
    parse: wholeNumber(1, 1_000_000),
  } satisfies Setting<number>,
  channelsPerOrg: {
    variable: 'SANDYARD_CHANNELS_PER_ORG',
    flag: null,
    fallback: '2048',
    unit: 'channels',
    meaning:
      'the most command channels that one organization has open at once, counted by each server process; more are answered 429',
    parse: wholeNumber(1, 1_000_000),
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

type SettingName = keyof typeof SETTINGS
type ValueOf<S> = S extends { parse: (text: string) => infer R } ? Extract<R, { value: unknown }>['value'] : never
type IsOptional<S> = S extends { fallback: null } ? true : false

/** Every setting's value. Those without a default are null when nobody set them. */
export type Config = {
  readonly [N in SettingName]: N extends 'dataDir'
    ? string
    : IsOptional<(typeof SETTINGS)[N]> extends true
      ? ValueOf<(typeof SETTINGS)[N]> | null
      : ValueOf<(typeof SETTINGS)[N]>
}

/** Reads every setting once. Throws `SettingError`. */
export function readConfig(env: NodeJS.ProcessEnv, flags: Readonly<Record<string, string | undefined>>): Config {
  const read = <N extends SettingName>(name: N): unknown => {
    const setting: Setting<unknown> = SETTINGS[name]
    const flag = setting.flag === null ? undefined : flags[setting.flag]
    const seen = flag ?? (env[setting.variable] === '' ? undefined : env[setting.variable]) ?? setting.fallback
    if (seen === null) return name === 'dataDir' ? defaultDataDir() : null
    const parsed = setting.parse(seen)
    if ('value' in parsed) return parsed.value
    const where = flag === undefined ? setting.variable : `--${String(setting.flag)}`
    throw new SettingError(`${where} is ${JSON.stringify(seen)}; accepted: ${parsed.accepted}`)
  }
  const entries = Object.keys(SETTINGS).map((name) => [name, read(name as SettingName)]) // the keys of the table are its names
  return Object.fromEntries(entries) as Config // each value was parsed by the setting of its name
}

/** The settings as rows for `--help` and the README: variable, flag, default, unit, meaning. */
export function settingRows(): readonly (readonly [string, string, string, string, string])[] {
  const settings: readonly Setting<unknown>[] = Object.values(SETTINGS)
  return settings.map(({ variable, flag, fallback, unit, meaning }) => [
    variable,
    flag === null ? '' : `--${flag}`,
    fallback ?? '',
    unit,
    meaning,
  ])
}
