import { X509Certificate } from 'node:crypto'
import type { Registry } from 'prom-client'
import type { ConnectionPoolUse } from '../../store/postgres/connection-pool.ts'
import { addDataFolderMetrics } from './file-system-metrics.ts'
import { addBuildInfo, addGauge, addReadCounter, type Sample } from './gauges.ts'

/** Where the metrics of a server process read their values. */
export type ProcessSources = {
  readonly version: string
  /** Whether the process can serve requests. Resolves with null when that isn't known in time. */
  readonly isReady: () => Promise<boolean | null>
  readonly replicas: { readonly count: number }
  readonly connectionPools: () => readonly ConnectionPoolUse[]
  /** Permits of this process for what stays open. `max` null: it is limited by each organization alone. */
  readonly permits: Readonly<Record<'waits' | 'log_streams' | 'channels', PermitUse>>
  readonly relay: { readonly openTicketCount: number; readonly standbyCount: number }
  readonly dataDir: string
  /** The certificate of the API in PEM. Null for plain HTTP. */
  readonly certificate: () => string | null
}

type PermitUse = { readonly inUse: () => number; readonly max: number | null }

/** Adds the metrics that each server process shows about itself. */
export function addProcessMetrics(register: Registry, sources: ProcessSources): void {
  const { version, permits } = sources
  const one = (value: number): readonly Sample[] => [{ value }]
  addBuildInfo(register, version)
  addGauge(
    register,
    {
      name: 'sandyard_ready',
      help: '1 if the process can serve requests, as `/readyz` answers, else 0.',
    },
    async () => one((await sources.isReady()) === true ? 1 : 0),
  )
  addGauge(
    register,
    {
      name: 'sandyard_replicas',
      help: 'Server processes that live on the same database, this one included.',
    },
    () => one(sources.replicas.count),
  )
  addConnectionPoolMetrics(register, sources.connectionPools)
  addGauge(
    register,
    {
      name: 'sandyard_waiting_requests',
      help: 'Requests that wait for a sandbox to run.',
    },
    () => one(permits.waits.inUse()),
  )
  addGauge(
    register,
    {
      name: 'sandyard_open_log_streams',
      help: 'Logs of sandboxes that are being read or followed.',
    },
    () => one(permits.log_streams.inUse()),
  )
  addGauge(
    register,
    {
      name: 'sandyard_open_channels',
      help: 'Command channels that are open, or are being opened.',
    },
    () => one(permits.channels.inUse()),
  )
  addGauge(
    register,
    {
      name: 'sandyard_permits_max',
      help: 'The limit of this process on waiting requests (`waits`) and open logs (`log_streams`).',
      labelNames: ['of'],
    },
    () => Object.entries(permits).flatMap(([of, { max }]) => (max === null ? [] : [{ labels: { of }, value: max }])),
  )
  addGauge(
    register,
    {
      name: 'sandyard_stream_tickets',
      help: 'Streams for which a worker was asked to dial in and has not yet.',
    },
    () => one(sources.relay.openTicketCount),
  )
  addGauge(
    register,
    {
      name: 'sandyard_standby_connections',
      help: 'Connections that workers keep open for the next streams.',
    },
    () => one(sources.relay.standbyCount),
  )
  addDataFolderMetrics(register, sources.dataDir)
  addGauge(
    register,
    {
      name: 'sandyard_tls_certificate_expiry_timestamp_seconds',
      help: 'When the certificate of the API expires. Absent for plain HTTP.',
    },
    () => {
      const pem = sources.certificate()
      return pem === null ? [] : one(new X509Certificate(pem).validToDate.getTime() / 1000)
    },
  )
}

function addConnectionPoolMetrics(register: Registry, read: ProcessSources['connectionPools']): void {
  const each = (samplesOf: (pool: ConnectionPoolUse) => readonly Sample[]): readonly Sample[] =>
    read().flatMap((pool) =>
      samplesOf(pool).map(({ labels, value }) => ({ labels: { pool: pool.name, ...labels }, value })),
    )
  addGauge(
    register,
    {
      name: 'sandyard_database_connections',
      help: 'Connections to PostgreSQL, by pool (tenants: requests; system: the program’s own work) and state.',
      labelNames: ['pool', 'state'],
    },
    () =>
      each(({ inUse, idle, connecting }) => [
        { labels: { state: 'in_use' }, value: inUse },
        { labels: { state: 'idle' }, value: idle },
        { labels: { state: 'connecting' }, value: connecting },
      ]),
  )
  addGauge(
    register,
    {
      name: 'sandyard_database_connections_max',
      help: 'The size of the connection pool.',
      labelNames: ['pool'],
    },
    () => each(({ max }) => [{ value: max }]),
  )
  addGauge(
    register,
    {
      name: 'sandyard_database_waiters',
      help: 'Calls that wait for a connection of the pool.',
      labelNames: ['pool'],
    },
    () => each(({ waiting }) => [{ value: waiting }]),
  )
  addGauge(
    register,
    {
      name: 'sandyard_database_up',
      help: '0 while the pool can’t reach PostgreSQL, else 1.',
      labelNames: ['pool'],
    },
    () => each(({ isAway }) => [{ value: isAway ? 0 : 1 }]),
  )
  addReadCounter(
    register,
    {
      name: 'sandyard_database_rejections_total',
      help: 'Calls that got no connection: PostgreSQL was away (outage), none became free (timeout), too many waited.',
      labelNames: ['pool', 'reason'],
    },
    () => each(({ rejected }) => Object.entries(rejected).map(([reason, value]) => ({ labels: { reason }, value }))),
  )
}
