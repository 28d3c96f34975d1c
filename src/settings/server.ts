import { isAbsolute } from 'node:path'
import { isPlanName, PLAN_NAME_RULE } from '../domain/orgs/plan.ts'
import { isRegistryHost, REGISTRY_HOST_RULE } from '../domain/orgs/registry-host.ts'
import { PUBLIC_HUB } from '../domain/spec/image-reference.ts'
import { ISOLATION_LEVELS, type IsolationLevel } from '../domain/isolation.ts'
import { PLACEMENT_POLICIES, type PlacementPolicy } from '../domain/workers/placement.ts'
import { LOG_FORMATS, LOG_LEVELS, type LogFormat, type LogLevel } from '../lib/log.ts'
import { parsePreviewDomain, type PreviewDomain } from './preview-domain.ts'
import { denials, directoryPath, oneOf, nonEmptyText, postgresUrl, integerBetween, type Setting } from './setting.ts'

/** The settings of the program and of the control plane. */
export const SERVER_SETTINGS = {
  host: {
    variable: 'SANDYARD_HOST',
    flag: 'host',
    fallback: '127.0.0.1',
    unit: 'address',
    meaning: 'the address on which the API listens',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  port: {
    variable: 'SANDYARD_PORT',
    flag: 'port',
    fallback: '8080',
    unit: 'port',
    meaning: 'the port on which the API listens; 0 picks a free one',
    parse: integerBetween(0, 65_535),
  } satisfies Setting<number>,
  processes: {
    variable: 'SANDYARD_PROCESSES',
    flag: 'processes',
    fallback: '1',
    unit: 'processes',
    meaning:
      'how many server processes share the port of the API; each also listens for workers on a port of its own, from the next one on',
    parse: integerBetween(1, 16),
  } satisfies Setting<number>,
  sshPort: {
    variable: 'SANDYARD_SSH_PORT',
    flag: 'ssh-port',
    fallback: '2222',
    unit: 'port',
    meaning: 'the port of the SSH server, on the address of the API; `off` or 0 turns it off',
    parse: (seen) => {
      const port = seen === 'off' ? 0 : Number(seen)
      return /^(off|\d{1,5})$/.test(seen) && port <= 65_535
        ? { value: port }
        : { accepted: 'off, or a whole number from 0 to 65535' }
    },
  } satisfies Setting<number>,
  advertiseUrl: {
    variable: 'SANDYARD_ADVERTISE_URL',
    flag: 'advertise-url',
    fallback: null,
    unit: 'URL',
    meaning:
      'the URL at which workers reach this server process, if several processes share one PostgreSQL (default: http:// or https:// with host and port)',
    parse: (seen) =>
      /^https?:\/\/[^/?#@]+\/?$/.test(seen) && URL.canParse(seen)
        ? { value: new URL(seen).origin }
        : { accepted: 'http:// or https:// with a host, and a port if it is not the usual one' },
  } satisfies Setting<string>,
  previewDomain: {
    variable: 'SANDYARD_PREVIEW_DOMAIN',
    flag: null,
    fallback: 'localhost',
    unit: 'domain',
    meaning:
      'the domain beneath which ports of sandboxes are opened, as PORT-SLUG.DOMAIN; https:// before it and :PORT after it say how clients reach it; off turns previews off',
    parse: parsePreviewDomain,
  } satisfies Setting<PreviewDomain>,
  dataDir: {
    variable: 'SANDYARD_DATA_DIR',
    flag: 'data-dir',
    fallback: null,
    unit: 'folder',
    meaning:
      'the folder for all persistent data: database, images, disks, keys (default: /var/lib/sandyard for root, else ~/.local/share/sandyard)',
    parse: directoryPath,
  } satisfies Setting<string>,
  ballastMib: {
    variable: 'SANDYARD_BALLAST_MIB',
    flag: null,
    fallback: null,
    unit: 'MiB',
    meaning:
      'the size of a file beside the embedded PostgreSQL that is deleted when the disk is full, so that sandboxes can still be deleted; 0 means no file (default: 1 % of the file system, at most 256)',
    parse: integerBetween(0, 65_536),
  } satisfies Setting<number>,
  apiKey: {
    variable: 'SANDYARD_API_KEY',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning: 'the first API key, at the first start, instead of a generated one; at least 8 characters',
    isSecret: true,
    parse: (seen) =>
      seen.length >= 8 && !/\s/.test(seen)
        ? { value: seen }
        : { accepted: 'at least 8 characters, none of them blank' },
  } satisfies Setting<string>,
  firstKeyFile: {
    variable: 'SANDYARD_FIRST_KEY_FILE',
    flag: null,
    fallback: null,
    unit: 'file',
    meaning:
      'a new file for the first API key, which only its owner can read, instead of standard output; used at the first start',
    parse: (seen) => (isAbsolute(seen) ? { value: seen } : { accepted: 'an absolute path' }),
  } satisfies Setting<string>,
  metricsKey: {
    variable: 'SANDYARD_METRICS_KEY',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning:
      'the bearer token for `/metrics`, at least 16 characters; without it, `/metrics` answers only clients on the same machine that no proxy forwards',
    isSecret: true,
    parse: (seen) =>
      seen.length >= 16 && !/\s/.test(seen)
        ? { value: seen }
        : { accepted: 'at least 16 characters, none of them blank' },
  } satisfies Setting<string>,
  metricsWorkers: {
    variable: 'SANDYARD_METRICS_WORKERS',
    flag: null,
    fallback: '200',
    unit: 'workers',
    meaning:
      'up to this number of workers, `/metrics` has series of each worker; beyond it, only sums over all workers',
    parse: integerBetween(0, 10_000),
  } satisfies Setting<number>,
  metricsSandboxes: {
    variable: 'SANDYARD_METRICS_SANDBOXES',
    flag: null,
    fallback: '0',
    unit: 'sandboxes',
    meaning:
      "up to this number of running sandboxes on a worker, the worker's `/metrics` has series of each sandbox, with its name and id as labels",
    parse: integerBetween(0, 10_000),
  } satisfies Setting<number>,
  defaultPlan: {
    variable: 'SANDYARD_DEFAULT_PLAN',
    flag: null,
    fallback: 'standard',
    unit: 'plan',
    meaning:
      'the plan of an organization that `sandyard org create` makes without `--plan`; the organization of the first start has the plan `unlimited`',
    parse: (seen) => (isPlanName(seen) ? { value: seen } : { accepted: PLAN_NAME_RULE }),
  } satisfies Setting<string>,
  databaseUrl: {
    variable: 'DATABASE_URL',
    flag: null,
    fallback: null,
    unit: 'URL',
    meaning:
      'your own PostgreSQL 15 or newer, instead of the embedded one, for the role that serves requests; a process opens up to 22 connections',
    isSecret: true,
    parse: postgresUrl,
  } satisfies Setting<string>,
  databaseOwnerUrl: {
    variable: 'DATABASE_OWNER_URL',
    flag: null,
    fallback: null,
    unit: 'URL',
    meaning:
      'the same database for the role that owns the tables, which applies migrations and grants the role of `DATABASE_URL` its rights; without it, the role of `DATABASE_URL` migrates if it owns the tables',
    isSecret: true,
    parse: postgresUrl,
  } satisfies Setting<string>,
  secretKey: {
    variable: 'SANDYARD_SECRET_KEY',
    flag: null,
    fallback: null,
    unit: 'base64, 32 bytes',
    meaning: 'the key that seals stored registry passwords (default: generated in the data folder)',
    isSecret: true,
    parse: (seen) => (Buffer.from(seen, 'base64').length === 32 ? { value: seen } : { accepted: '32 bytes in base64' }),
  } satisfies Setting<string>,
  logLevel: {
    variable: 'SANDYARD_LOG_LEVEL',
    flag: 'log-level',
    fallback: 'warn',
    unit: LOG_LEVELS.join(', '),
    meaning:
      'the least severe messages that are logged, on standard error; `info` has one line for each step of a sandbox’s life',
    parse: oneOf<LogLevel>(LOG_LEVELS),
  } satisfies Setting<LogLevel>,
  logFormat: {
    variable: 'SANDYARD_LOG_FORMAT',
    flag: null,
    fallback: 'auto',
    unit: ['auto', ...LOG_FORMATS].join(', '),
    meaning: 'how messages are logged: JSON lines, or text for people (`pretty`); `auto` is `pretty` at a terminal',
    parse: oneOf<LogFormat | 'auto'>(['auto', ...LOG_FORMATS]),
  } satisfies Setting<LogFormat | 'auto'>,
  defaultRegistry: {
    variable: 'SANDYARD_DEFAULT_REGISTRY',
    flag: null,
    fallback: PUBLIC_HUB,
    unit: 'host',
    meaning: 'the registry for image references without a host',
    parse: (seen) => {
      const host = seen.toLowerCase()
      return isRegistryHost(host) ? { value: host } : { accepted: REGISTRY_HOST_RULE }
    },
  } satisfies Setting<string>,
  networkDeny: {
    variable: 'SANDYARD_NETWORK_DENY',
    flag: null,
    fallback: 'metadata,link_local,worker,database,control_plane',
    unit: 'ranges',
    meaning:
      'what no sandbox may reach, whatever its policy allows: CIDR blocks, groups (`metadata`, `link_local`, `private`, `multicast`, `public`), and `worker` (the subnets of the worker and its resolvers), `database`, `control_plane`; `none` denies none of them; `sandyard org allow` opens a range for one organization',
    parse: denials,
  } satisfies Setting<readonly string[]>,
  requireIsolation: {
    variable: 'SANDYARD_REQUIRE_ISOLATION',
    flag: 'require-isolation',
    fallback: null,
    unit: ISOLATION_LEVELS.join(', '),
    meaning:
      'the weakest isolation that sandboxes may have; a server places none on a weaker worker, and a worker with a weaker driver does not start',
    parse: oneOf<IsolationLevel>(ISOLATION_LEVELS),
  } satisfies Setting<IsolationLevel>,
  placement: {
    variable: 'SANDYARD_PLACEMENT',
    flag: 'placement',
    fallback: 'pack',
    unit: PLACEMENT_POLICIES.join(', '),
    meaning:
      'which worker gets a run: `pack` fills one worker after the other, which keeps space for large sandboxes; `spread` loads all workers evenly',
    parse: oneOf<PlacementPolicy>(PLACEMENT_POLICIES),
  } satisfies Setting<PlacementPolicy>,
  stopGraceMs: {
    variable: 'SANDYARD_STOP_GRACE_MS',
    flag: null,
    fallback: '5000',
    unit: 'ms',
    meaning: 'the time from SIGTERM to SIGKILL when a sandbox is stopped',
    parse: integerBetween(0, 9_000),
  } satisfies Setting<number>,
} as const
