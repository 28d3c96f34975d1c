import { Registry, type Metric } from 'prom-client'
import { FLEET_METRICS } from '../../src/cli/metrics/fleet-metrics.ts'
import { labelNamesOf } from '../../src/cli/metrics/gauges.ts'
import { LEADER_LOOP_METRICS, makeLoopMetrics } from '../../src/cli/metrics/loop-metrics.ts'
import { addMachineMetrics, makePullMetrics, withSyncMetrics } from '../../src/cli/metrics/machine-metrics.ts'
import { makeRunMetrics } from '../../src/cli/metrics/run-metrics.ts'
import { makeStartMetrics } from '../../src/cli/metrics/start-metrics.ts'
import { addSandboxMetrics } from '../../src/cli/metrics/sandbox-series.ts'
import { addServerMetrics, type ServerMetricsDeps } from '../../src/cli/metrics/server-metrics.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { makeControlPlane } from '../../src/worker/agent/control-plane.ts'
import { makeHttpWorld } from './http-world.ts'

/** A registry with the metrics of a server process, except for those of HTTP. `deps` replace what the metrics read. */
export function makeServerMetrics(deps: Partial<ServerMetricsDeps> = {}): Registry {
  const register = new Registry()
  addServerMetrics(register, {
    db: { asSystem: () => Promise.reject(new Error('this test has no database')) },
    clock: systemClock,
    log: makeLog('silent'),
    version: '1.2.3',
    isLeading: () => true,
    explainOldestWaiting: () => Promise.resolve([]),
    unreadyReasons: () => Promise.resolve([]),
    replicas: { count: 1 },
    connectionPools: () => [],
    permits: {
      waits: { inUse: () => 0, max: 1 },
      log_streams: { inUse: () => 0, max: 1 },
      channels: { inUse: () => 0, max: null },
    },
    relay: { openTicketCount: 0, standbyCount: 0 },
    dataDir: '/',
    certificate: () => null,
    workerSeriesMax: 200,
    ...deps,
  })
  return register
}

/** A metric as the documents list it. */
export type ListedMetric = {
  readonly name: string
  readonly type: string
  readonly labels: readonly string[]
  readonly shownBy: 'each server' | 'the leader' | 'each worker' | 'each process'
  readonly help: string
}

/** Every metric of servers and workers by its name, without those that Node and the process library define. */
export async function listMetrics(): Promise<readonly ListedMetric[]> {
  const register = makeServerMetrics()
  makeLoopMetrics(register, systemClock)
  makeRunMetrics(register)
  addMachineMetrics(register, {
    driver: { list: () => Promise.resolve([]), pools: () => [] },
    storage: { root: '/' },
    readImageBytes: () => Promise.resolve(0),
    clock: systemClock,
    log: makeLog('silent'),
  })
  addSandboxMetrics(register, { totals: () => [] }, 1)
  makePullMetrics(register, systemClock)
  withSyncMetrics(register, {
    controlPlane: makeControlPlane({ url: 'http://127.0.0.1:9', credential: '' }),
    clock: systemClock,
  })
  makeStartMetrics(register)
  await makeHttpWorld({ server: { metrics: register } }).close()
  const ofLeader = new Set([...LEADER_LOOP_METRICS, ...FLEET_METRICS.map(({ name }) => name)])
  const shownBy = (name: string): ListedMetric['shownBy'] => {
    if (ofLeader.has(name)) return 'the leader'
    if (/^sandyard_(machine|sandbox)_/.test(name)) return 'each worker'
    return /^sandyard_(build_info|data_folder_)/.test(name) ? 'each process' : 'each server'
  }
  const types = new Map((await register.getMetricsAsJSON()).map(({ name, type }) => [name, String(type)]))
  return register
    .getMetricsAsArray()
    .map((described) => {
      const { name, help } = described
      const metric: Metric | undefined = register.getSingleMetric(name)
      const labels = metric === undefined ? [] : labelNamesOf(metric)
      return { name, help, labels, type: types.get(name) ?? '', shownBy: shownBy(name) }
    })
    .filter(({ name }) => name.startsWith('sandyard_'))
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
}
